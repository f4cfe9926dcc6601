package program_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
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
