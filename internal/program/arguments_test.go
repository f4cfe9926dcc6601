package program_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

func TestMain_helpListsTheSettingsOfTheProgram(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ listed, other string }{
		"api":     {"\n  DATABASE_URL (secret, required)\n    Connection string \n  IN_FLIGHT_WAIT (duration, 250ms)\n \n  OTEL_TRACES_EXPORTER (text, empty)\n", "STRIPE_SECRET_KEY"},
		"worker":  {"\n  STRIPE_SECRET_KEY (secret, required)\n \n  LEASE (duration, 3s)\n \n  OTEL_TRACES_EXPORTER (text, empty)\n", "RATE_LIMIT"},
		"sandbox": {"\n  SHOP_WEBHOOK_SECRET (secret, empty)\n ", "LEASE"},
	} {
		var stdout strings.Builder
		if code := program.Main([]string{"--help"}, &stdout, io.Discard, name, nil); code != 0 {
			t.Errorf("%s: exit code %d", name, code)
		}
		for want := range strings.SplitSeq(test.listed, " \n") {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%s --help lacks %q:\n%s", name, want, &stdout)
			}
		}
		if strings.Contains(stdout.String(), "\n  "+test.other+" ") {
			t.Errorf("%s --help lists %s", name, test.other)
		}
	}
}

// ordinary are names of variables that pods, units, CI and shells have beside a program's settings: those
// that are most like a setting, and common ones.
const ordinary = `
LOGNAME HOSTNAME LANGUAGE LC_ALL LC_CTYPE COLUMNS EDITOR VISUAL TMPDIR DISPLAY SSH_CLIENT LISTEN_FDS LISTEN_PID NOTIFY_SOCKET MAINPID
KUBERNETES_SERVICE_HOST KUBERNETES_PORT_443_TCP_ADDR API_SERVICE_HOST API_PORT WORKER_PORT SANDBOX_PORT CONSOLE_PORT REDIS_PORT REDIS_HOST
REDIS_TLS_URL METRICS_PORT HTTP_PORT HTTP_HOST DATABASE_PORT DATABASE_HOST DATABASE_NAME DATABASE_USER DATABASE_PASSWORD DATABASE_POOL_SIZE
DB_URL DB_HOST POSTGRES_DB POSTGRES_URL POD_NAME POD_IP NODE_NAME HOST_IP PGHOST PGPORT PGUSER PGPASSWORD PGSSLMODE GOPROXY GOMAXPROCS
GOMEMLIMIT GODEBUG HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy SSL_CERT_FILE SSL_KEY_FILE NODE_ENV CI_JOB_ID BUILD_ID JOB_NAME AWS_REGION
VAULT_ADDR CONSUL_HTTP_ADDR NOMAD_ADDR PORT HOST ADDR RELEASE VERSION ENVIRONMENT APP_ENV APP_NAME APP_KEY API_URL API_TOKEN BASE_URL
SECRET_KEY SENTRY_DSN STRIPE_API_KEY STRIPE_PUBLISHABLE_KEY OTEL_SERVICE_NAME OTEL_METRICS_EXPORTER OTEL_LOGS_EXPORTER
OTEL_BLRP_SCHEDULE_DELAY OTEL_BLRP_EXPORT_TIMEOUT OTEL_BLRP_MAX_QUEUE_SIZE OTEL_TRACES_SAMPLER_ARGS LOG_FORMAT LOGLEVEL LOG_LVL SMTP_ADDR
FTP_ADDR REDIS_URI REDIS_SSL RAM_LIMIT APP_URL AWS_KEY LOG_FILE DEBUG VERBOSE TIMEOUT MAX_RETRIES MAX_CONNECTIONS WORKERS
WEB_CONCURRENCY CONCURRENCY RETENTION DOCKER_HOST TEST_DATABASE_URL API_ADDR CORS_ALLOWED_ORIGINS WEBHOOK_URL TLS_CERT TLS_KEY TLS_CA_FILE
INBOX_RETENTION DATABASE_URL_FILE STRIPE_SECRET_KEY_FILE LEASE_FILE`

func TestLoad_refusesMisspelledSettings(t *testing.T) {
	t.Parallel()
	environ := map[string]string{}
	for name := range strings.FieldsSeq(ordinary) {
		environ[name] = hidden
	}
	if err := program.Misspelled(environ); err != nil || len(environ) < 120 {
		t.Errorf("of %d ordinary variables one is refused: %v", len(environ), err)
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
		args   string
		code   int
		stdout string // a part of it; "": there is nothing
		stderr string
	}{
		{"--version", 0, "sample v0.2.0, commit ", ""},
		{"--version", 0, runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n", ""},
		{"--help", 0, "Usage: sample", ""},
		{"--stripe-key=sk_live_hunter2", 2, "", "sample: unknown arguments\nUsage: sample"},
		{"--version --now", 2, "", "Usage: sample"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr strings.Builder
			code := program.Main(strings.Fields(test.args), &stdout, &stderr, "sample", func(context.Context, *slog.Logger, map[string]string) error {
				return errors.New("it ran")
			})
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for got, want := range map[*strings.Builder]string{&stdout: test.stdout, &stderr: test.stderr} {
				if !strings.Contains(got.String(), want) || want == "" && got.Len() > 0 || strings.Contains(got.String(), "hunter2") {
					t.Errorf("printed %q, want %q in it", got, want)
				}
			}
		})
	}
}

func TestSettings_refusesWhatWent(t *testing.T) {
	t.Parallel()
	log := program.Logger(io.Discard, "test", nil)
	for name, sentence := range program.Gone {
		environ := map[string]string{"CONFIG_URL": hidden, name: hidden}
		_, err := program.Settings[settings](log, environ)
		if err == nil || err.Error() != name+" is no setting, remove the variable: "+sentence {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(sentence, "\n") || strings.HasSuffix(sentence, ".") || len(sentence) < 20 {
			t.Errorf("%s has no sentence: %q", name, sentence)
		}
		environ[name] = ""
		if _, err := program.Settings[settings](log, environ); err != nil {
			t.Errorf("%s, empty: %v", name, err)
		}
		environ[name] = hidden
		if _, err := program.Load[settings](environ); err != nil {
			t.Errorf("a tool beside a service refuses %s: %v", name, err)
		}
	}
	for _, setting := range program.Known() {
		if program.Gone[setting] != "" {
			t.Errorf("%s is a setting and is refused", setting)
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
