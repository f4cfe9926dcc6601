package program

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// Secret is a setting that no log line shows.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret; it shows only whether there is one.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// MarshalText hides the secret from encoding/json and log/slog.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Format hides the secret from every verb of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// Environ returns the variables of the process.
func Environ() map[string]string { return env.ToMap(os.Environ()) }

// Load parses an environment into T, whose fields carry the tags of
// github.com/caarlos0/env. T may have a method Check() error. Load's error is one sentence
// that names the variable and says what it needs, also for a name that differs from a setting's by
// one or two characters. A variable of type Secret may be the content
// of a file, without the line's end, that the variable with _FILE behind its name names.
func Load[T any](environ map[string]string) (settings T, err error) {
	if err = misspelled(environ, variables(reflect.TypeFor[T]())); err != nil {
		return settings, err
	}
	if environ, err = withFiles(environ, reflect.TypeFor[T]()); err != nil {
		return settings, err
	}
	if settings, err = env.ParseAsWithOptions[T](env.Options{Environment: environ}); err != nil {
		return settings, sentence(err, reflect.TypeFor[T]())
	}
	if checked, ok := any(settings).(interface{ Check() error }); ok {
		err = checked.Check()
	}
	return settings, err
}

// withFiles returns environ with the secrets that files hold.
func withFiles(environ map[string]string, settings reflect.Type) (map[string]string, error) {
	all := maps.Clone(environ)
	for field := range settings.Fields() {
		name := variable(field)
		path := environ[name+"_FILE"]
		if path == "" || field.Type != reflect.TypeFor[Secret]() {
			continue
		}
		if environ[name] != "" {
			return nil, fmt.Errorf("%[1]s and %[1]s_FILE are both set: set one of them", name)
		}
		secret, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s_FILE cannot be read: %w", name, err)
		}
		all[name] = strings.TrimRight(string(secret), "\r\n")
	}
	return all, nil
}

// Settings is Load for a service: it refuses settings that went, and logs each setting under the
// name of its variable, secrets hidden.
func Settings[T any](log *slog.Logger, environ map[string]string) (settings T, err error) {
	if err = refuseGone(environ); err != nil {
		return settings, err
	}
	if settings, err = Load[T](environ); err != nil {
		return settings, err
	}
	var attrs []any
	v := reflect.ValueOf(settings)
	for _, field := range reflect.VisibleFields(v.Type()) {
		if name := variable(field); name != "" {
			attrs = append(attrs, slog.String(name, fmt.Sprint(v.FieldByIndex(field.Index).Interface())))
		}
	}
	log.Info("settings", attrs...)
	return settings, nil
}

// sentence returns the library's first error, with the variable in place of the field.
func sentence(err error, settings reflect.Type) error {
	if all := (env.AggregateError{}); errors.As(err, &all) && len(all.Errors) > 0 {
		err = all.Errors[0]
	}
	if unread := (env.ParseError{}); errors.As(err, &unread) {
		if field, ok := settings.FieldByName(unread.Name); ok {
			return fmt.Errorf("%s cannot be read, set it to %s: %w", variable(field), wanted(field.Type), unread.Err)
		}
	}
	return err
}

// wanted says what a setting of a type is.
func wanted(of reflect.Type) string {
	switch {
	case of == reflect.TypeFor[time.Duration]():
		return "a duration such as 3s or 72h"
	case of == reflect.TypeFor[[]netip.Prefix]():
		return "networks such as 10.0.0.0/8,192.0.2.7/32, without blanks"
	case of == reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error"
	case of.Kind() == reflect.Bool:
		return "true or false"
	default:
		return "a whole number"
	}
}

// variable is the name of the environment variable behind a field.
func variable(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
	return name
}

// Logger writes JSON lines of a level and above that carry the program's name.
func Logger(w io.Writer, program string, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})).With("program", program)
}

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
