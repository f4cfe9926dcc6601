package arch_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

var (
	choice = regexp.MustCompile(`\brand\.(\w+)|(?i:\brandom\(\))`)
	// seeded are what math/rand/v2 has that takes a seed or a source, and its types.
	seeded = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}
)

// TestTests_chooseBySeed reads every test of the repository. A failure that depends on a choice, also
// on one of the server's random function, can be repeated only if the choice has a seed.
func TestTests_chooseBySeed(t *testing.T) {
	t.Parallel()
	for at, text := range readTree(t) {
		if !strings.HasSuffix(at, "_test.go") || at == "internal/arch/random_test.go" {
			continue
		}
		for _, found := range unseeded(text) {
			t.Errorf("%s: %s has no seed: choose by testrun.Rand, or by a hash of a seed", at, found)
		}
	}
	planted := "import \"math/rand/v2\"\nrand.New(rand.NewPCG(1, 2)).IntN(6)\nrand.IntN(6)\nselect id from t order by RANDOM() limit 1\nselect gen_random_uuid()"
	testrun.Same(t, "planted", []string{"rand.IntN", "RANDOM()"}, unseeded(planted))
}

// unseeded returns each choice of a test that has no seed.
func unseeded(text string) (found []string) {
	uses := strings.Contains(text, `"math/rand/v2"`)
	for _, match := range choice.FindAllStringSubmatch(text, -1) {
		if match[1] == "" || uses && !slices.Contains(seeded, match[1]) {
			found = append(found, match[0])
		}
	}
	return found
}
