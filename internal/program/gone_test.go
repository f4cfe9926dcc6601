package program_test

import (
	"io"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

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
