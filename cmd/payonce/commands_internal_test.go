package main

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/demo"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestReference_commands(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, command := range newParser(new(commands)).Model.Leaves(true) {
		rows = append(rows, []string{arch.Code("payonce " + command.Summary()), command.Help})
	}
	arch.Section(t, "cli.md", "Commands", arch.List(rows))
}

func TestReference_guards(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, g := range demo.Guards() {
		red := cmp.Or(strings.Join(g.Red, "; "), "nothing")
		rows = append(rows, []string{arch.Code(g.Name), g.Kind + ".", "Fault: " + g.Fault + ".", "Violated: " + red + ".", "The charge: " + g.Charge + "."})
	}
	arch.Section(t, "guard-lab.md", "Guards", arch.List(rows))
}

// The commands of payonce that a page shows exist, with their flags. What stands between backticks may be a part of one.
func TestDocs_showCommandsThatExist(t *testing.T) {
	t.Parallel()
	block, command := regexp.MustCompile("(?ms)^```.*?^```"), regexp.MustCompile(`(?m)^(?:\$ )?payonce ([a-z]+(?: [^|;&]*?)?)(?:: |$)`)
	inline := regexp.MustCompile("`payonce ([^`]+)`")
	found := 0
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md", "deploy/*.md", "deploy/*/*.md"} {
		pages, err := filepath.Glob("../../" + pattern)
		testrun.Must(t, err)
		for _, page := range pages {
			if filepath.Base(page) == "cli.md" { // it is generated
				continue
			}
			text, err := os.ReadFile(page)
			testrun.Must(t, err)
			shown := inline.FindAllStringSubmatch(string(text), -1)
			for _, lines := range block.FindAllString(string(text), -1) {
				shown = append(shown, command.FindAllStringSubmatch(lines, -1)...)
			}
			for _, line := range shown {
				found++
				parser := newParser(new(commands), kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}))
				if _, err := parser.Parse(strings.Fields(line[1])); err != nil && strings.HasPrefix(err.Error(), "un") { // unknown, or unexpected
					t.Errorf("%s: payonce %s: %v", page, line[1], err)
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("the pages show %d commands", found)
	}
}

// seedWith seeds acme with a webhook secret.
func seedWith(t *testing.T, db *postgres.DB, secret string) error {
	t.Helper()
	s := seedCmd{Merchant: "acme", APIKey: "sk_test_demo", WebhookURL: "https://shop.example", WebhookSecret: secret}
	return s.Run(t.Context(), &console{stdout: io.Discard, stderr: io.Discard}, db)
}

// TestSeed_atOnceNoSecretIsDroppedSilently: of seeds at once that give other secrets one is taken, and
// the others end with an error.
func TestSeed_atOnceNoSecretIsDroppedSilently(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	ends := make(chan string, 8) // the secret that was taken, or none
	for range cap(ends) {
		go func() {
			secret := merchants.NewWebhookSecret()
			if err := seedWith(t, db, secret); err != nil && strings.Contains(err.Error(), "payonce webhooks rotate replaces it") {
				secret = ""
			}
			ends <- secret
		}()
	}
	var taken []string
	for range cap(ends) {
		if secret := <-ends; secret != "" {
			taken = append(taken, secret)
		}
	}
	testrun.Same(t, "the secrets", taken, testdb.All[string](t, db, `select secret from webhook_secrets`))
}

// TestRotate_printsASecretThatMayBeStored: the old secrets have ended, so the merchant needs the one that signs.
func TestRotate_printsASecretThatMayBeStored(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	direct, proxy := testdb.Connect(t, url), failpoint.StartCutter(t, url)
	testdb.Must(t, seedWith(t, direct, merchants.NewWebhookSecret()))
	db := testdb.Connect(t, proxy.URL())
	var printed, said strings.Builder
	proxy.Arm(failpoint.After, 2)
	r := webhooksRotateCmd{Merchant: "acme"}
	err := r.Run(t.Context(), &console{stdout: &printed, stderr: &said}, db)
	if groupcommit.OutcomeOf(err) != groupcommit.Unknown || proxy.Cuts() != 1 {
		t.Errorf("it ends with %v after %d cuts and says %s", err, proxy.Cuts(), said.String())
	}
	signing := testdb.All[string](t, direct, `select secret from webhook_secrets where ends_at is null`)
	testrun.Same(t, "secrets that sign", []string{strings.TrimSpace(printed.String())}, signing)
}

// TestConsole_printsWhatThereIs: a list that could not be read is one in JSON, and of an example each line is one.
func TestConsole_printsWhatThereIs(t *testing.T) {
	t.Parallel()
	var printed, people strings.Builder
	showSecret[merchants.Key](&console{stdout: &printed, json: true}, "whsec_made", nil, "")
	testrun.Same(t, "a list", "{\n  \"secret\": \"whsec_made\",\n  \"data\": []\n}\n", printed.String())
	printViolations(&people, []audit.Check{{Name: "it starts", Checked: 1, Violated: 1, Examples: []string{"it logs:\none\x1b[2J\ntwo"}}})
	testrun.Same(t, "a violation", "it starts: it logs:\nit starts: one\uFFFD[2J\nit starts: two\n", people.String())
}
