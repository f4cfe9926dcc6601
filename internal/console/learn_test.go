package console_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// TestLearn_namesCodeThatIsThere: each step of the tour has its function.
func TestLearn_namesCodeThatIsThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("assets/tour.json")
	testdb.Must(t, err)
	steps := regexp.MustCompile(`"file": "([^"]+)",\s+"func": "([^"]+)"`).FindAllStringSubmatch(string(text), -1)
	if len(steps) != 10 {
		t.Errorf("the tour has %d steps", len(steps))
	}
	for _, step := range steps {
		code, err := os.ReadFile("../../" + step[1])
		if err != nil || !regexp.MustCompile(`(?m)^func (\([^)]+\) )?`+step[2]+`\(`).Match(code) {
			t.Errorf("%s has no %s: %v", step[1], step[2], err)
		}
	}
}
