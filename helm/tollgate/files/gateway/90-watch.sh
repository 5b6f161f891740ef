#!/bin/sh
# In the official image's /docker-entrypoint.d. nginx begins when the name of the servers
# means an address, and reads its files anew when a mounted secret changed or the name
# means other addresses. What may be under way follows how many servers these are, where
# GATEWAY_PODS says how many gateways share them; GATEWAY_SERVERS names that number
# where addresses do not tell it, and GATEWAY_BOUNDS a file that says
# the bounds to who counts. A configuration that nginx refuses changes nothing; it says
# why and goes on.
set -eu

CONFIGURATION=${GATEWAY_CONFIGURATION:-/tmp/nginx/nginx.conf}
TEMPLATE=${GATEWAY_TEMPLATE:-/etc/nginx/templates/nginx.conf.template}
# Servers that go serve on for some seconds; DNS remembers them for 5.
EVERY_S=${GATEWAY_WATCH_S:-2}

addresses() {
  { getent ahosts "${GATEWAY_UPSTREAM%:*}" || true; } | awk '{ print $1 }' | sort -u
}

look() {
  cat "$GATEWAY_TLS_CERT" "$GATEWAY_TLS_KEY" "$GATEWAY_CLIENT_CA" "$GATEWAY_KEYS" \
    2>/dev/null | cksum
  addresses
}

# share BOUND: what of one server's bound is this gateway's, of all servers.
share() {
  part=$(($1 * servers / GATEWAY_PODS))
  echo "$((part > 0 ? part : 1))"
}

# Bounds that are set by hand stay as they are; so do all while no server is known, and
# while there is no room to write them.
bound() {
  [ -n "${GATEWAY_PODS:-}" ] || return 0
  servers=${GATEWAY_SERVERS:-0}
  [ "$servers" -gt 0 ] || servers=$(addresses | wc -l)
  [ "$servers" -gt 0 ] || return 0
  (
    GATEWAY_IN_FLIGHT=$(share "$GATEWAY_IN_FLIGHT")
    GATEWAY_CALLER_IN_FLIGHT=$(share "$GATEWAY_CALLER_IN_FLIGHT")
    GATEWAY_BULK_IN_FLIGHT=$(share "$GATEWAY_BULK_IN_FLIGHT")
    export GATEWAY_IN_FLIGHT GATEWAY_CALLER_IN_FLIGHT GATEWAY_BULK_IN_FLIGHT
    # shellcheck disable=SC2016  # names for envsubst, not values
    envsubst "$(env | sed -n 's/^\(GATEWAY_[A-Z_]*\)=.*/${\1}/p')" \
      <"$TEMPLATE" >"$CONFIGURATION.new" || exit 1
    [ -z "${GATEWAY_BOUNDS:-}" ] || {
      echo "$GATEWAY_IN_FLIGHT $GATEWAY_CALLER_IN_FLIGHT $GATEWAY_BULK_IN_FLIGHT" \
        >"$GATEWAY_BOUNDS.new" && mv "$GATEWAY_BOUNDS.new" "$GATEWAY_BOUNDS"
    } || echo "gateway: $GATEWAY_BOUNDS cannot be written" >&2
    echo "gateway: servers: $servers, under way at most: $GATEWAY_IN_FLIGHT," \
      "of one caller $GATEWAY_CALLER_IN_FLIGHT, bulk $GATEWAY_BULK_IN_FLIGHT"
  ) || return 1
  mv "$CONFIGURATION.new" "$CONFIGURATION"
}

watch() {
  owed=""
  echo "gateway: looking at keys, certificates and servers every $EVERY_S s"
  while sleep "$EVERY_S"; do
    now=$(look)
    [ "$now$owed" != "$seen" ] || continue
    # A key that was taken away ends all the same, and bounds are tried again.
    if bound; then
      owed=""
    else
      [ "$now" != "$seen" ] || continue
      owed=" bounds"
      echo "gateway: bounds cannot be written; those from before go on" >&2
    fi
    seen=$now
    if nginx -t -q -c "$CONFIGURATION" -e stderr; then
      echo "gateway: files or servers changed; read anew"
      nginx -s reload -c "$CONFIGURATION" -e stderr || true
    fi
  done
}

if [ -z "$(addresses)" ]; then
  echo "gateway: ${GATEWAY_UPSTREAM%:*} means no address; waiting for a server"
  until [ -n "$(addresses)" ]; do sleep 1; done
fi
# First, so that what changes from here on is seen.
seen=$(look)
bound
watch &
