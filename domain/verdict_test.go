package domain_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// verdict is what a command does to a charge in one state: causes events, is
// refused by a sentinel, or, where both are absent, has happened already. A
// verdict on a group is one on each of its states that no verdict above names.
type verdict struct {
	name    string
	state   string
	causes  []domain.Event
	refused error
}

// decides checks a command against every state there is.
func decides(t *testing.T, cmd domain.Command, verdicts []verdict) {
	t.Helper()
	missing := states()
	for _, v := range verdicts {
		judged := 0
		for _, state := range members(v.state) {
			i := slices.Index(missing, state)
			if i < 0 {
				continue
			}
			judged++
			missing = slices.Delete(missing, i, i+1)
			name := v.name
			if state != v.state {
				name += "/" + state
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				v.check(t, cmd, state)
			})
		}
		if judged == 0 {
			t.Errorf("%q is about no state that is left", v.name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no verdict for %T on a charge that is %q", cmd, missing)
	}
}

func (v verdict) check(t *testing.T, cmd domain.Command, state string) {
	t.Helper()
	c := in(state)
	events, err := domain.Decide(c, cmd)
	if !errors.Is(err, v.refused) {
		t.Errorf("the error is %v, want %v", err, v.refused)
	}
	if diff := cmp.Diff(v.causes, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(in(state), c); diff != "" {
		t.Errorf("Decide changed its argument (-want +got):\n%s", diff)
	}
	if err != nil {
		return
	}
	if _, err := domain.Replay(after(state, events...)); err != nil {
		t.Errorf("Decide made a stream that Replay refuses: %v", err)
	}
	if isAttempt(cmd) {
		return
	}
	if again, err := domain.Decide(domain.Fold(c, events...), cmd); len(again) != 0 || err != nil {
		t.Errorf("the same command again returns %v and %v, want nothing", again, err)
	}
}

// isAttempt tells the commands that have no "again": each is another attempt.
func isAttempt(cmd domain.Command) bool {
	_, payment := cmd.(domain.FailAttempt)
	_, refund := cmd.(domain.FailRefundAttempt)
	return payment || refund
}
