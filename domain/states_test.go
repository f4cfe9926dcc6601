package domain_test

import (
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
)

// The states in which a command can meet a charge, by what has happened to it.
const (
	absent = "absent"

	requested     = "requested"
	requestedBare = "requested without items"
	reserved      = "reserved"
	started       = "started"
	startedBare   = "started without items"
	attemptFailed = "attempt failed"

	rejected        = "rejected"
	declined        = "declined"
	declinedUnbegun = "declined before a payment intent"
	failedAndTold   = "declined and told"

	succeeded       = "succeeded"
	told            = "succeeded and told"
	succeededSilent = "succeeded without webhook"

	canceling            = "cancel requested"
	cancelingBare        = "cancel requested without items"
	cancelingReserved    = "cancel requested with stock held"
	cancelingStarted     = "cancel requested with a started payment"
	cancelingStartedBare = "cancel requested with a started payment, without items"

	canceled            = "canceled"
	canceledBare        = "canceled without items"
	canceledReserved    = "canceled with stock held"
	canceledStarted     = "canceled with a started payment"
	canceledStartedBare = "canceled with a started payment, without items"
	canceledTold        = "canceled and told"

	declinedFirst = "declined after a cancel was requested"
	capturedFirst = "captured after a cancel was requested"

	refundPending    = "refund pending"
	refundAttempted  = "refund attempt failed"
	refundOfAll      = "refund of all pending"
	partlyRefunded   = "partially refunded"
	fullyRefunded    = "refunded in two parts"
	refundFailed     = "refund failed"
	refundRefused    = "refund failed without a provider's object"
	refundReversed   = "refund reversed"
	refundsOfAllKind = "one refund pending, one succeeded, one failed"
	refundTold       = "partially refunded and told of both"
	refundSilent     = "partially refunded without webhook"
	toldLate         = "told of the charge after the refund"
)

// Groups of states, for commands to which they are all the same.
const (
	anyOpen       = "any without outcome"
	anyCanceling  = "any with a cancel requested and no outcome"
	anyFailed     = "any that failed"
	anyCanceled   = "any that was canceled"
	anyCaptured   = "any captured"
	anyUnrefunded = "any captured without refund"
	anyRefund     = "any with a refund"
)

// members are the states of a group; a state is the only member of itself.
func members(group string) []string {
	switch group {
	case anyOpen:
		return append(members(anyCanceling), requested, requestedBare, reserved, started, startedBare, attemptFailed)
	case anyCanceling:
		return []string{canceling, cancelingBare, cancelingReserved, cancelingStarted, cancelingStartedBare}
	case anyFailed:
		return append(members(anyCanceled), rejected, declined, declinedUnbegun, failedAndTold, declinedFirst)
	case anyCanceled:
		return []string{canceled, canceledBare, canceledReserved, canceledStarted, canceledStartedBare, canceledTold}
	case anyCaptured:
		return append(members(anyUnrefunded), members(anyRefund)...)
	case anyUnrefunded:
		return []string{succeeded, told, succeededSilent, capturedFirst}
	case anyRefund:
		return []string{
			refundPending, refundAttempted, refundOfAll, partlyRefunded, fullyRefunded, refundFailed, refundRefused,
			refundReversed, refundsOfAllKind, refundTold, refundSilent, toldLate,
		}
	default:
		return []string{group}
	}
}

// states lists every state there is.
func states() []string {
	return slices.Concat([]string{absent}, members(anyOpen), members(anyFailed), members(anyCaptured))
}

// in is a charge in a state.
func in(state string) domain.Charge {
	return domain.Fold(domain.Charge{ID: "ch_1"}, history(state)...)
}

func TestEveryHistoryOfTheTestsIsLegal(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, state := range states() {
		if seen[state] {
			t.Errorf("%s is in two groups", state)
		}
		seen[state] = true
		if state != absent && len(history(state)) == 0 {
			t.Errorf("%s has no history", state)
		}
		if _, err := domain.Replay(history(state)); err != nil {
			t.Errorf("%s: %v", state, err)
		}
	}
}

// The groups are written down, not computed, so that they hold the charge's own
// answers to the same questions.
func TestCharge(t *testing.T) {
	t.Parallel()
	begun := slices.Concat(members(anyCaptured), []string{
		started, startedBare, attemptFailed, declined, failedAndTold, declinedFirst,
		cancelingStarted, cancelingStartedBare, canceledStarted, canceledStartedBare,
	})
	asked := slices.Concat(members(anyCanceling), members(anyCanceled), []string{declinedFirst, capturedFirst})
	pending := []string{refundPending, refundAttempted, refundOfAll, refundsOfAllKind}
	for _, state := range states() {
		c := in(state)
		terminal := slices.Contains(append(members(anyFailed), members(anyCaptured)...), state)
		for question, answer := range map[string][2]bool{
			"exists":            {c.Exists(), state != absent},
			"started":           {c.Started(), slices.Contains(begun, state)},
			"terminal":          {c.Terminal(), terminal},
			"settled":           {c.Complete(), terminal && !slices.Contains(pending, state)},
			"is to be canceled": {c.CancelRequested, slices.Contains(asked, state)},
		} {
			if answer[0] != answer[1] {
				t.Errorf("a charge that is %s %s: %v, want %v", state, question, answer[0], answer[1])
			}
		}
	}
}
