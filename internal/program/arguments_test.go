package program_test

import (
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

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
