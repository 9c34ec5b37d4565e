#!/bin/sh
# Make what secrets are missing, start the service, give Prometheus and Alertmanager tokens of their own, start the rest.
set -eu
cd "$(dirname "$0")/.."
umask 077
mkdir -p deploy/secrets
# Containers read the files under other user ids; on this machine the folder keeps everybody else out.
for name in postgres_password admin_token grafana_password viewer_token ingest_token; do
  file=deploy/secrets/$name
  [ -e "$file" ] || : >"$file"
  chmod 0644 "$file"
  case $name in *_token) [ "$name" = admin_token ] || continue ;; esac
  [ -s "$file" ] || head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$file"
done
[ "${1:-}" = secrets ] && exit 0
docker compose up -d --build --wait postgres
docker compose up -d --build pitstop
for role in viewer ingest; do
  file=deploy/secrets/${role}_token
  [ -s "$file" ] && continue
  # What takes lines in is bound to the sources that it may name.
  bind=; [ "$role" = viewer ] || bind="--bind compose-$role"
  docker compose exec -T pitstop sh -c \
    "PGPASSWORD=\$(cat /run/secrets/postgres_password) pitstop token create compose-$role --role $role $bind" >"$file"
done
docker compose up -d
