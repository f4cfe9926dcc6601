package program

import (
	"fmt"
	"maps"
	"slices"
)

// gone are the settings that a service refuses: each had a meaning in an earlier version, and its
// sentence says what takes its place. A service with such a setting would run without what the
// setting asks for.
var gone = map[string]string{
	"CONSOLE_ACCESS":                  "the console asks for no key, and listens on a loopback address alone",
	"CONSOLE_AUTHENTICATION_FAILURES": "the console asks for no key, and listens on a loopback address alone",
	"CONSOLE_HOSTS":                   "the console answers under loopback names alone: forward its port with ssh -L or kubectl port-forward",
	"CORS_ORIGINS":                    "an API key belongs on a server, so no web page may call the API",
	"DOCS_HOSTS":                      "GET /openapi.yaml is the contract, for a viewer of your own",
	"IDEMPOTENCY_KEY_MODE":            "a client sends its key, and ONE_CHARGE_PER_ORDER refuses a second charge of an order",
	"OUTBOX_RETENTION":                "the outbox deletes a message once the inbox has stored it, and INBOX_RETENTION says how long a repetition is recognized",
	"QUARANTINE_RETENTION":            "another payload under a known message id is a dead letter, which stays until payonce inbox retry or discard",
	"READ_DATABASE_URL":               "the api reads the server of DATABASE_URL alone",
	"REDIS_TTL":                       "PostgreSQL alone answers replays; examples/redis is a cache for programs of your own",
	"REDIS_URL":                       "PostgreSQL alone answers replays; examples/redis is a cache for programs of your own",
	"TLS_CERT_FILE":                   "a proxy before the program ends TLS",
	"TLS_KEY_FILE":                    "a proxy before the program ends TLS",
}

// refuseGone refuses a setting that went, unless it is empty.
func refuseGone(environ map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		if environ[name] != "" {
			return fmt.Errorf("%s is no setting, remove the variable: %s", name, gone[name])
		}
	}
	return nil
}
