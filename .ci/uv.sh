# shellcheck shell=bash
# uv installs in a tenth of pip's time. It reads none of pip's settings: it is told here what pip is told.
# Sourced by .ci/run; uses $tools.

# What pip is told: pip_setting OPTION
pip_setting() {
    local variable=PIP_${1//-/_}
    variable=${variable^^}
    [ -n "${!variable:-}" ] && echo "${!variable}" || "$tools/bin/python" -m pip config get "global.$1" 2>/dev/null
}

# Have uv, and have make and tox install with it; false where it does not find what pip finds.
use_uv() {
    local value
    "$tools/bin/python" -m pip install --quiet --quiet uv || return
    value=$(pip_setting index-url) && export UV_DEFAULT_INDEX=$value
    value=$(pip_setting extra-index-url) && export UV_EXTRA_INDEX_URL=${value//$'\n'/ }
    value=$(pip_setting find-links) && export UV_FIND_LINKS=${value//[$' \n']/,}
    value=$(pip_setting cert) && export SSL_CERT_FILE=$value
    export UV_INDEX_STRATEGY=unsafe-best-match UV_NO_PROGRESS=1 # any index, as pip does
    "$tools/bin/uv" pip install --quiet --dry-run --python "$tools/bin/python" tox-uv Django celery redis || return
    "$tools/bin/python" -m pip install --quiet --quiet tox-uv || return
    export pip_install="$tools/bin/uv pip install --quiet --python .venv/bin/python"
}
