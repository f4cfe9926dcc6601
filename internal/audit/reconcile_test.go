package audit_test

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// lists are the provider's lists by their names, and of each the objects by their ids.
type lists map[string]map[string]audit.Listed

// edit changes the lists as a section of testdata/listed.txt says, and returns the checks that this violates, and
// the charges of which it misses events.
func (f *fixture) edit(l lists, section txtar.File) (want, missed []string) {
	f.t.Helper()
	for line := range strings.Lines(f.named(string(section.Data))) {
		words := append(strings.Fields(strings.ReplaceAll(line, " - ", "  \x00 ")), "", "")
		for i := range words {
			words[i] = strings.Trim(strings.ReplaceAll(words[i], ",", " "), "\x00")
		}
		switch list, id := words[0], words[1]; {
		case list == ">":
			want = append(want, strings.TrimSpace(line[1:]))
		case list == "!":
			missed = append(missed, id)
		case id == "":
			l[list] = nil
		case len(words) == 4:
			delete(l[list], id)
		default:
			amount, err := strconv.ParseInt(words[5], 10, 64)
			testdb.Must(f.t, err)
			l[list][id] = audit.Listed{ID: id, Reference: words[2], PaymentIntent: words[3], Status: words[4], Amount: amount, Currency: words[6], Moves: words[7]}
		}
	}
	return want, missed
}

// listed are the sections of testdata/listed.txt, and the lists of the first one: what the ledger says.
func (f *fixture) listed() ([]txtar.File, lists) {
	f.t.Helper()
	archive, err := txtar.ParseFile("testdata/listed.txt")
	testdb.Must(f.t, err)
	l := lists{"payment": {}, "refund": {}, "dispute": {}}
	f.edit(l, archive.Files[0])
	return archive.Files[1:], l
}

func list(items map[string]audit.Listed) iter.Seq2[audit.Listed, error] {
	return func(yield func(audit.Listed, error) bool) {
		for _, id := range slices.Sorted(maps.Keys(items)) {
			if !yield(items[id], nil) {
				return
			}
		}
	}
}

func (l lists) provided() audit.Provided {
	return audit.Provided{Payments: list(l["payment"]), Refunds: list(l["refund"]), Disputes: list(l["dispute"])}
}

// TestReconcile compares what the provider lists with the ledger: in each case of testdata/listed.txt, where a list
// breaks off, and where the ledger lacks postings.
func TestReconcile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, id := range maps.Clone(f.ids) {
		f.ids["reference_of_"+name] = testdb.All[string](t, f.db,
			`select coalesce(max(data ->> 'reference'), '') from ledger_events where version = 1 and stream_id = $1`, id)[0]
	}
	cases, _ := f.listed()
	judged, broken := map[string]bool{}, map[string]bool{}
	for _, test := range cases {
		_, l := f.listed()
		want, missing := f.edit(l, test)
		checks, missed, err := audit.Reconcile(t.Context(), f.db, l.provided())
		if diff := cmp.Diff(sorted(want), violated(checks)); diff != "" || err != nil || !slices.Equal(missed, missing) {
			t.Errorf("%s: %v, missed %q, want %q, violated (-want +got):\n%s", test.Name, err, missed, missing, diff)
		}
		for _, name := range want {
			broken[name] = true
		}
		for _, c := range checks {
			judged[c.Name] = true
		}
	}
	testrun.Same(t, "checks that a case violates", judged, broken)

	down := errors.New("down")
	breaksOff := func(yield func(audit.Listed, error) bool) { yield(audit.Listed{}, down) }
	for i := range 3 {
		_, l := f.listed()
		provided := l.provided()
		*[]*iter.Seq2[audit.Listed, error]{&provided.Payments, &provided.Refunds, &provided.Disputes}[i] = breaksOff
		if _, _, err := audit.Reconcile(t.Context(), f.db, provided); !errors.Is(err, down) {
			t.Errorf("list %d: %v", i, err)
		}
	}

	f.run("breakable")
	f.exec(`
delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%';
delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`)
	_, l := f.listed()
	checks, _, err := audit.Reconcile(t.Context(), f.db, l.provided())
	testdb.Must(t, err)
	testrun.Same(t, "violated", []string{"provider: captured sums equal the ledger's", "provider: refunded sums equal the ledger's"}, violated(checks))
}

// TestReconcile_besideTraffic records outcomes before or after a list is read.
func TestReconcile_besideTraffic(t *testing.T) {
	t.Parallel()
	for name, traffic := range map[string]map[string]func(*fixture){
		"a charge is captured before the list": {"before": func(f *fixture) { f.pay("early") }},
		"a charge is captured after the list":  {"payments": func(f *fixture) { f.pay("late") }},
		"a refund succeeds after the list":     {"refunds": func(f *fixture) { f.endRefund("returning", "re_returning", false) }},
		"a refund is reversed after the list":  {"refunds": func(f *fixture) { f.endRefund("part", "re_part", true) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			_, l := f.listed()
			provided := l.provided()
			then := func(all iter.Seq2[audit.Listed, error], when string) iter.Seq2[audit.Listed, error] {
				return func(yield func(audit.Listed, error) bool) {
					all(yield)
					if do := traffic[when]; do != nil {
						do(f)
					}
				}
			}
			provided.Refunds = then(provided.Refunds, "refunds")
			provided.Payments = then(func(yield func(audit.Listed, error) bool) {
				if do := traffic["before"]; do != nil {
					do(f)
					f.edit(l, txtar.File{Data: []byte("payment pi_early {early} pi_early succeeded 1000 USD\n")})
				}
				list(l["payment"])(yield)
			}, "payments")
			checks, _, err := audit.Reconcile(t.Context(), f.db, provided)
			if got := violated(checks); len(got) != 0 || err != nil {
				t.Errorf("violated: %v, %v", got, err)
			}
		})
	}
}
