package domain_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestAppend compares the states that each event may follow with testdata/validate.txt: what no line names is
// refused. A request that is refused is void in a stored stream: it changes the version, and posts nothing.
func TestAppend(t *testing.T) {
	t.Parallel()
	var lines []string
	all := maps.Clone(histories().candidates)
	for _, kind := range domain.EventTypes() {
		if kind.Request {
			all[kind.Name+" that cannot be read"] = domain.Unreadable{Name: kind.Name}
		}
	}
	for _, s := range histories().states {
		if _, err := (domain.Charge{}).Append(history(s.name)...); err != nil {
			t.Errorf("the history of %s: %v", s.name, err)
		}
	}
	for name, e := range all {
		var after []string
		for _, s := range histories().states {
			before := in(s.name)
			c, err := before.Append(e)
			if err == nil {
				after = append(after, s.name)
				continue
			}
			testrun.Same(t, fmt.Sprintf("%s after %s: Append has changed the charge", name, s.name), before, c)
			want := fmt.Sprintf("%s at version %d", domain.TypeOf(e), before.Version+1)
			if !errors.Is(err, domain.ErrIllegal) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s after %s: the error is %v, want ErrIllegal: %s", name, s.name, err, want)
			}
			void := domain.EventTypeNamed(domain.TypeOf(e)).Request
			if before.Voids(e) != void {
				t.Errorf("%s after %s is void: %t, want %t", name, s.name, !void, void)
			}
			if !void {
				continue
			}
			if legs := domain.Postings(before, e); legs != nil {
				t.Errorf("%s after %s posts %+v", name, s.name, legs)
			}
			folded := domain.Fold(before, e)
			if before.Version++; !cmp.Equal(before, folded) {
				t.Errorf("%s after %s (-before +after):\n%s", name, s.name, cmp.Diff(before, folded))
			}
		}
		if len(after) > 0 {
			lines = append(lines, name+" | "+strings.Join(after, ", "))
		}
	}
	slices.Sort(lines)
	testrun.Golden(t, "validate.txt", append(lines, "")...)
}

// TestAppend_refusesATypeInNoList: it has no name by which it could be stored.
func TestAppend_refusesATypeInNoList(t *testing.T) {
	t.Parallel()
	type unlisted struct{ domain.ChargeCancelRequested }
	before := in("started")
	c, err := before.Append(unlisted{})
	if !errors.Is(err, domain.ErrIllegal) || !strings.Contains(err.Error(), "unlisted is in no list of event types") || !cmp.Equal(before, c) {
		t.Errorf("the error is %v, the charge %+v", err, c)
	}
}
