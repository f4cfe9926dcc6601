package program_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/program"
)

const hidden = "hunter2"

type settings struct {
	Address string         `env:"CONFIG_ADDRESS" envDefault:"127.0.0.1:8080"`
	URL     program.Secret `env:"CONFIG_URL,required,notEmpty"`
	Token   program.Secret `env:"CONFIG_TOKEN"`
	Mode    string         `env:"CONFIG_MODE" envDefault:"wait" oneof:"wait|409|425"`
	Lease   time.Duration  `env:"CONFIG_LEASE" envDefault:"3s"`
	Tries   int            `env:"CONFIG_TRIES" envDefault:"12"`
	CIDRs   []netip.Prefix `env:"CONFIG_CIDRS"`
	Dry     bool           `env:"CONFIG_DRY"`
	Unset   string         // not from the environment
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
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if got.URL.Reveal() != hidden {
			t.Errorf("the secret is %q", got.URL.Reveal())
		}
	})

	const unset = "unset"
	for _, test := range []struct{ name, variable, value, want string }{
		{"what must be set and is not", "CONFIG_URL", unset, "CONFIG_URL is not set: the program cannot start without it"},
		{"what must be set and is empty", "CONFIG_URL", "", "CONFIG_URL is empty: the program cannot start without it"},
		{"a word that is none of those allowed", "CONFIG_MODE", "never", `CONFIG_MODE is "never": set it to one of wait, 409, 425`},
		{"a word in other letters", "CONFIG_MODE", "Wait", `CONFIG_MODE is "Wait": set it to one of wait, 409, 425`},
		{"a duration without unit", "CONFIG_LEASE", "3", `CONFIG_LEASE cannot be read, set it to a duration such as 3s or 72h: unable to parse duration: time: missing unit in duration "3"`},
		{"a number that is none", "CONFIG_TRIES", "many", `CONFIG_TRIES cannot be read, set it to a whole number: strconv.ParseInt: parsing "many": invalid syntax`},
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

func TestSecret(t *testing.T) {
	t.Parallel()

	t.Run("no format shows it", func(t *testing.T) {
		t.Parallel()
		s := settings{URL: hidden}
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
			for _, value := range []any{s.URL, &s.URL, s, &s, []program.Secret{s.URL}, map[string]program.Secret{"": s.URL}} {
				text := fmt.Sprintf(format, value)
				if strings.Contains(text, hidden) || strings.Contains(strings.ToLower(text), fmt.Sprintf("%x", hidden)) {
					t.Errorf("%s of a %T shows it", format, value)
				}
			}
		}
	})

	t.Run("no log shows it", func(t *testing.T) {
		t.Parallel()
		var lines bytes.Buffer
		s := settings{URL: hidden}
		for _, handler := range []slog.Handler{slog.NewJSONHandler(&lines, nil), slog.NewTextHandler(&lines, nil)} {
			slog.New(handler).Info("settings", "secret", s.URL, "all", s, "pointer", &s.URL)
		}
		if strings.Contains(lines.String(), hidden) {
			t.Errorf("the log says %s", &lines)
		}
	})

	t.Run("no JSON shows it", func(t *testing.T) {
		t.Parallel()
		text, err := json.Marshal(settings{URL: hidden})
		if err != nil || strings.Contains(string(text), hidden) {
			t.Errorf("%s, %v", text, err)
		}
	})

	t.Run("whether there is one may be known", func(t *testing.T) {
		t.Parallel()
		if got := program.Secret("").String() + program.Secret(hidden).String(); got != "(hidden)" {
			t.Errorf("it shows %q", got)
		}
	})
}

func TestLogSettings(t *testing.T) {
	t.Parallel()
	var line bytes.Buffer
	program.LogSettings(program.Logger(&line, "api"), settings{
		Address: "127.0.0.1:8080", URL: hidden, Mode: "wait", Lease: 3 * time.Second, Tries: 12, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	var got map[string]string
	if err := json.Unmarshal(line.Bytes(), &got); err != nil {
		t.Fatalf("%s: %v", &line, err)
	}
	if got["time"] == "" {
		t.Error("the line has no time")
	}
	delete(got, "time")
	want := map[string]string{
		"level": "INFO", "msg": "settings", "program": "api",
		"CONFIG_ADDRESS": "127.0.0.1:8080", "CONFIG_URL": "(hidden)", "CONFIG_TOKEN": "", "CONFIG_MODE": "wait",
		"CONFIG_LEASE": "3s", "CONFIG_TRIES": "12", "CONFIG_CIDRS": "[10.0.0.0/8]", "CONFIG_DRY": "false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}
