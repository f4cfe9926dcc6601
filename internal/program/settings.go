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

// Settings is Load for a service: it logs each setting under the name of its variable, secrets hidden.
func Settings[T any](log *slog.Logger, environ map[string]string) (settings T, err error) {
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

// sentence turns the library's first error into one that names the variable instead
// of the field.
func sentence(err error, settings reflect.Type) error {
	if all := (env.AggregateError{}); errors.As(err, &all) && len(all.Errors) > 0 {
		err = all.Errors[0]
	}
	var missing env.VarIsNotSetError
	var empty env.EmptyVarError
	var unread env.ParseError
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("%s is not set: the program cannot start without it", missing.Key)
	case errors.As(err, &empty):
		return fmt.Errorf("%s is empty: the program cannot start without it", empty.Key)
	case errors.As(err, &unread):
		if field, ok := settings.FieldByName(unread.Name); ok {
			return fmt.Errorf("%s cannot be read, set it to %s: %w", variable(field), wanted(field.Type), unread.Err)
		}
	}
	return fmt.Errorf("a setting cannot be read: %w", err)
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
