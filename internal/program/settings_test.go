package program_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

const hidden = "hunter2"

type settings struct {
	Address string         `env:"CONFIG_ADDRESS" envDefault:"127.0.0.1:8080"`
	URL     program.Secret `env:"CONFIG_URL,required,notEmpty"`
	Token   program.Secret `env:"CONFIG_TOKEN"`
	Mode    string         `env:"CONFIG_MODE" envDefault:"wait"`
	Lease   time.Duration  `env:"CONFIG_LEASE" envDefault:"3s"`
	Tries   int            `env:"CONFIG_TRIES" envDefault:"12"`
	CIDRs   []netip.Prefix `env:"CONFIG_CIDRS"`
	Dry     bool           `env:"CONFIG_DRY"`
	Level   slog.Level     `env:"CONFIG_LEVEL" envDefault:"info"`
	Unset   string         // not from the environment
}

func (s settings) Check() error {
	if s.Mode == "never" {
		return errors.New("CONFIG_MODE is never")
	}
	return nil
}

func TestLoad(t *testing.T) {
	t.Parallel()
	t.Run("reads the environment, and has defaults where it is silent", func(t *testing.T) {
		t.Parallel()
		got, err := program.Load[settings](map[string]string{"CONFIG_URL": hidden, "CONFIG_MODE": "425", "CONFIG_CIDRS": "10.0.0.0/8,192.168.0.0/16"})
		want := settings{
			Address: "127.0.0.1:8080", URL: hidden, Mode: "425", Lease: 3 * time.Second, Tries: 12,
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")},
		}
		testrun.Must(t, err)
		testrun.Same(t, "settings", want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		testrun.Same(t, "the secret", hidden, got.URL.Reveal())
	})

	const unset = "unset"
	for _, test := range []struct{ name, variable, value, want string }{
		{"what must be set and is not", "CONFIG_URL", unset, `required environment variable "CONFIG_URL" is not set`},
		{"what must be set and is empty", "CONFIG_URL", "", `environment variable "CONFIG_URL" should not be empty`},
		{"what the program itself refuses", "CONFIG_MODE", "never", "CONFIG_MODE is never"},
		{
			"a duration without unit", "CONFIG_LEASE", "3",
			`CONFIG_LEASE cannot be read, set it to a duration such as 3s or 72h: unable to parse duration: time: missing unit in duration "3"`,
		},
		{"a number that is none", "CONFIG_TRIES", "many", `CONFIG_TRIES cannot be read, set it to a whole number: strconv.ParseInt: parsing "many": invalid syntax`},
		{
			"a level that is none", "CONFIG_LEVEL", "loud",
			`CONFIG_LEVEL cannot be read, set it to debug, info, warn or error: slog: level string "loud": unknown name`,
		},
		{"neither true nor false", "CONFIG_DRY", "maybe", `CONFIG_DRY cannot be read, set it to true or false: strconv.ParseBool: parsing "maybe": invalid syntax`},
		{"a network after a blank", "CONFIG_CIDRS", "10.0.0.0/8, 192.0.2.7/32", `CONFIG_CIDRS cannot be read, set it to networks such as 10.0.0.0/8,192.0.2.7/32, without blanks: netip.ParsePrefix(" 192.0.2.7/32"): ParseAddr(" 192.0.2.7"): unexpected character (at " 192.0.2.7")`},
	} {
		t.Run("refuses in one sentence "+test.name, func(t *testing.T) {
			t.Parallel()
			environ := map[string]string{"CONFIG_URL": hidden, test.variable: test.value}
			if test.value == unset {
				delete(environ, test.variable)
			}
			_, err := program.Load[settings](environ)
			if err == nil || err.Error() != test.want {
				t.Errorf("it says %q, want %q", err, test.want)
			}
		})
	}
}

func TestLoad_readsSecretsFromFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	testrun.Must(t, os.WriteFile(file, []byte(hidden+"\r\n"), 0o600))
	got, err := program.Load[settings](map[string]string{"CONFIG_URL_FILE": file, "CONFIG_TOKEN_FILE": ""})
	if err != nil || got.URL.Reveal() != hidden || got.Token != "" {
		t.Errorf("the secrets are %q and %q: %v", got.URL.Reveal(), got.Token.Reveal(), err)
	}
	for name, test := range map[string]struct {
		environ map[string]string
		want    string
	}{
		"both":                   {map[string]string{"CONFIG_URL": hidden, "CONFIG_URL_FILE": file}, "CONFIG_URL and CONFIG_URL_FILE are both set: set one of them"},
		"a file that is missing": {map[string]string{"CONFIG_URL_FILE": file + ".none"}, "CONFIG_URL_FILE cannot be read: "},
		"no secret":              {map[string]string{"CONFIG_URL": hidden, "CONFIG_MODE": "never", "CONFIG_MODE_FILE": file}, "CONFIG_MODE is never"},
	} {
		if _, err := program.Load[settings](test.environ); err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), hidden) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	s := settings{URL: hidden}
	for _, value := range []any{s.URL, &s.URL, s, &s, []program.Secret{s.URL}, map[string]program.Secret{"": s.URL}} {
		var shown bytes.Buffer
		for format := range strings.FieldsSeq("%v %+v %#v %s %q %x %X %d %T") {
			fmt.Fprintf(&shown, format, value)
		}
		for _, handler := range []slog.Handler{slog.NewJSONHandler(&shown, nil), slog.NewTextHandler(&shown, nil)} {
			slog.New(handler).Info("settings", "value", value)
		}
		testrun.Must(t, json.NewEncoder(&shown).Encode(value))
		if text := strings.ToLower(shown.String()); strings.Contains(text, hidden) || strings.Contains(text, fmt.Sprintf("%x", hidden)) {
			t.Errorf("a %T is shown as %s", value, text)
		}
	}
	log, printed := logger()
	_, err := program.Settings[settings](log, map[string]string{"CONFIG_URL": hidden, "CONFIG_CIDRS": "10.0.0.0/8"})
	for _, want := range []string{`"CONFIG_URL":"(hidden)"`, `"CONFIG_TOKEN":""`, `"CONFIG_LEASE":"3s"`, `"CONFIG_CIDRS":"[10.0.0.0/8]"`} {
		if err != nil || !strings.Contains(printed.String(), want) {
			t.Errorf("%s is not printed, %v: %s", want, err, printed)
		}
	}
	if got := program.Secret("").String() + program.Secret(hidden).String(); got != "(hidden)" {
		t.Errorf("whether there is one shows as %q", got)
	}
}

// ordinary are names of variables that pods, units, CI and shells have beside a program's settings: those
// that are most like a setting.
const ordinary = `
LOGNAME LC_ALL API_ADDR API_PORT API_TOKEN API_URL APP_ENV APP_KEY APP_URL AWS_KEY BASE_URL DB_URL TLS_KEY CONSOLE_PORT SANDBOX_PORT
METRICS_PORT HTTP_PORT HTTP_HOST HTTP_PROXY FTP_ADDR SMTP_ADDR DATABASE_PORT DATABASE_HOST DATABASE_NAME DATABASE_USER TEST_DATABASE_URL
PGUSER GOMEMLIMIT RAM_LIMIT RELEASE DEBUG VERBOSE HOST LOGLEVEL LOG_FILE LOG_LVL STRIPE_API_KEY WEB_CONCURRENCY WEBHOOK_URL
OTEL_METRICS_EXPORTER OTEL_TRACES_SAMPLER_ARGS OTEL_BLRP_SCHEDULE_DELAY OTEL_BLRP_EXPORT_TIMEOUT OTEL_BLRP_MAX_QUEUE_SIZE
INBOX_RETENTION DATABASE_URL_FILE STRIPE_SECRET_KEY_FILE LEASE_FILE`

func TestLoad_refusesMisspelledSettings(t *testing.T) {
	t.Parallel()
	environ := map[string]string{}
	for name := range strings.FieldsSeq(ordinary) {
		environ[name] = hidden
	}
	if err := program.Misspelled(environ); err != nil {
		t.Errorf("an ordinary variable is refused: %v", err)
	}
	for name, means := range map[string]string{
		"HTTP_ADR": "HTTP_ADDR", "WORKER_CONCURENCY": "WORKER_CONCURRENCY", "MAX_ATTEMPT": "MAX_ATTEMPTS", "LEASES": "LEASE",
		"RATELIMIT": "RATE_LIMIT", "LOG_LEVL": "LOG_LEVEL", "HTPT_ADDR": "HTTP_ADDR", "STRIPE_SECRT_KEYS": "STRIPE_SECRET_KEY",
	} {
		environ[name] = hidden
		if err := program.Misspelled(environ); err == nil ||
			!strings.HasPrefix(err.Error(), name+" is not a setting, and "+means+" is: ") || strings.Contains(err.Error(), hidden) {
			t.Errorf("%s: %v", name, err)
		}
		delete(environ, name)
	}
	for name, says := range map[string]string{"CONFIG_LEAES": "CONFIG_LEASE is", "CONFIG_URL_FIEL": "CONFIG_URL_FILE is", "CONFIG_HTTP_ADDR": ""} {
		_, err := program.Load[settings](map[string]string{"CONFIG_URL": hidden, name: hidden})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMain_answersArgumentsWithoutRunning(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, args     string
		code           int
		stdout, stderr string // a part of each; "": there is nothing
	}{
		{"sample", "--version", 0, "sample v0.2.0, commit ", ""},
		{"sample", "--version", 0, runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n", ""},
		{"sample", "--help", 0, "Usage: sample", ""},
		{"api", "--help", 0, "\n  IN_FLIGHT_WAIT (duration, 250ms)\n", ""},
		{"worker", "--help", 0, "\n  STRIPE_SECRET_KEY (secret, required)\n", ""},
		{"worker", "--help", 0, "\n  OTEL_TRACES_EXPORTER (text, empty)\n", ""}, // of a section for two programs
		{"sample", "--stripe-key=sk_live_hunter2", 2, "", "sample: unknown arguments\nUsage: sample"},
		{"sample", "--version --now", 2, "", "Usage: sample"},
	} {
		var stdout, stderr strings.Builder
		code := program.Main(strings.Fields(test.args), &stdout, &stderr, test.name, nil)
		if code != test.code || strings.Contains(stdout.String(), "STRIPE_SECRET_KEY") != (test.name == "worker") {
			t.Errorf("%s %s: exit code %d, want %d; it printed %s", test.name, test.args, code, test.code, &stdout)
		}
		for got, want := range map[*strings.Builder]string{&stdout: test.stdout, &stderr: test.stderr} {
			if !strings.Contains(got.String(), want) || want == "" && got.Len() > 0 || strings.Contains(got.String(), "hunter2") {
				t.Errorf("%s %s printed %q, want %q in it", test.name, test.args, got, want)
			}
		}
	}
}

func TestSettings_refusesWhatWent(t *testing.T) {
	t.Parallel()
	log, known := program.Logger(io.Discard, "test", nil), program.Known()
	for name, sentence := range program.Gone {
		environ := map[string]string{"CONFIG_URL": hidden, name: hidden}
		_, err := program.Settings[settings](log, environ)
		if err == nil || err.Error() != name+" is no setting, remove the variable: "+sentence || slices.Contains(known, name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := program.Load[settings](environ); err != nil {
			t.Errorf("%s beside a tool: %v", name, err)
		}
		environ[name] = ""
		if _, err := program.Settings[settings](log, environ); err != nil {
			t.Errorf("%s, empty: %v", name, err)
		}
	}
}

// A release changes the version in three files.
func TestRelease_isTheNewestOfTheChangelog(t *testing.T) {
	t.Parallel()
	for file, version := range map[string]string{
		"../../CHANGELOG.md":                              `\n## \[(.+?)\]`,
		"../../deploy/kubernetes/base/kustomization.yaml": `newTag: v(.+)`,
	} {
		text, err := os.ReadFile(file)
		newest := regexp.MustCompile(version).FindSubmatch(text)
		if err != nil || newest == nil || "v"+string(newest[1]) != program.Release {
			t.Errorf("the newest version of %s is %q, the programs are %s (error %v)", file, newest, program.Release, err)
		}
	}
}
