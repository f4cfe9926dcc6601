package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/postgres"
)

type inboxCmd struct {
	List    inboxListCmd    `cmd:"" help:"List dead letters, those of each charge in their order." example:"inbox list --older 1h"`
	Show    inboxShowCmd    `cmd:"" help:"Show one message with its payload, in any state." example:"inbox show 12"`
	Retry   inboxRetryCmd   `cmd:"" help:"Make dead letters due at once. Their attempts are not counted. They are given by their numbers, or selected by flags." example:"inbox retry --receiver notification --reason 'shop is back'" progress:"deciding on dead letters"`
	Discard inboxDiscardCmd `cmd:"" help:"Discard dead letters without handling them. It unblocks the messages behind them. They are given as for retry. It cannot be undone." example:"inbox discard 12 --reason 'paid by hand'" progress:"deciding on dead letters"`
}

// inboxFilter selects messages.
type inboxFilter struct {
	Charge   string         `placeholder:"ID" help:"Only the messages of this charge, or of this refund: each refund has its own."`
	Type     string         `placeholder:"refund.succeeded.v1" help:"Only messages of this type."`
	Receiver string         `placeholder:"notification" help:"Only messages for this receiver."`
	Older    model.Duration `placeholder:"1h" help:"Only messages that were received at least so long ago."`
}

func (f inboxFilter) list(ctx context.Context, db *postgres.DB, status deadletter.Status, limit uint32) ([]deadletter.Entry, error) {
	return deadletter.List(ctx, db, deadletter.Filter{
		Status: status, OrderingKey: f.Charge, Type: f.Type, Receiver: f.Receiver, Older: time.Duration(f.Older),
	}, 0, int(limit))
}

type inboxListCmd struct {
	inboxFilter

	Status string `default:"dead" enum:"dead,discarded" help:"Status of the messages: dead (a dead letter) or discarded."`
	Limit  uint32 `placeholder:"N" help:"Number of messages, oldest first. Without it all."`
}

func (l inboxListCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	entries, err := l.list(ctx, db, deadletter.Status(l.Status), l.Limit)
	if err == nil {
		showList(c, entries, messageColumns)
	}
	return err
}

var messageColumns = columns[deadletter.Entry]{
	"ID\tRECEIVED (UTC)\tRECEIVER\tCHARGE\tTYPE\tATTEMPTS\tWAITS\tDEATHS\tBEHIND\tREASON",
	func(e deadletter.Entry) []any {
		reason := e.LastError
		if e.DecidedBy != "" {
			reason = fmt.Sprintf("%s by %s: %s", e.Status, e.DecidedBy, reason)
		}
		return []any{
			e.Number, e.ReceivedAt.Format(time.DateTime), e.Receiver, e.OrderingKey, e.Type,
			e.Attempts, e.Waits, e.Deaths, e.Behind, reason,
		}
	},
}

type inboxShowCmd struct {
	ID int64 `arg:"" help:"The message, by its number in the list."`
}

// wholeMessage is a message with what its sender wrote. A payload that is no JSON is shown
// in base64.
type wholeMessage struct {
	deadletter.Entry

	Metadata json.RawMessage `json:"metadata"`
	Payload  any             `json:"payload"`
}

func (s inboxShowCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	e, err := deadletter.Show(ctx, db, s.ID)
	if err != nil {
		return err
	}
	m := wholeMessage{Entry: e, Metadata: e.Metadata, Payload: e.Payload}
	if json.Valid(e.Payload) {
		m.Payload = json.RawMessage(e.Payload)
	}
	c.json = true // for people too: what others wrote is escaped
	c.show(m, nil)
	return nil
}

type inboxRetryCmd struct {
	IDs []int64 `arg:"" optional:"" name:"id" help:"Messages, by their numbers in the list. Without them the dead letters that the flags select."`

	inboxFilter
	reasonFlag

	All bool `help:"All dead letters."`
}

func (r inboxRetryCmd) AfterApply(o *postgres.Options) error {
	filtered := r.inboxFilter != inboxFilter{}
	switch {
	case len(r.IDs) == 0 && !filtered && !r.All:
		return errors.New("say which: numbers, --charge, --type, --receiver, --older, or --all")
	case len(r.IDs) > 0 && (filtered || r.All), filtered && r.All:
		return errors.New("numbers, flags that select, or --all, but only one of them")
	}
	return r.reasonFlag.AfterApply(o)
}

func (r inboxRetryCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	return r.decide(ctx, c, db, deadletter.Retry)
}

type inboxDiscardCmd struct{ inboxRetryCmd }

func (d inboxDiscardCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	return d.decide(ctx, c, db, deadletter.Discard)
}

// decide decides on the messages in the order given, or in which they were received. One that
// cannot be decided on is named on stderr and does not keep the others from it; the exit code
// is then 1. Another error ends it.
//
// If we die here: each message is decided on, with its operator and reason, or still a dead
// letter. The operator repeats the command, which selects what is left.
// Test: TestScripts/inbox.
func (r inboxRetryCmd) decide(
	ctx context.Context, c *console, db *postgres.DB,
	decide func(ctx context.Context, q postgres.Querier, number int64, actor string) error,
) error {
	numbers := r.IDs
	if len(numbers) == 0 { // all at first: what dies anew meanwhile is not selected once more
		selected, err := r.list(ctx, db, deadletter.StatusDead, 0)
		if err != nil {
			return err
		}
		for _, e := range selected {
			numbers = append(numbers, e.Number)
		}
	}
	var decided []deadletter.Entry
	var refused []error
	for _, number := range numbers {
		var e deadletter.Entry
		err := decide(ctx, db, number, operator())
		if err == nil {
			e, err = deadletter.Show(ctx, db, number)
		}
		if err == nil {
			decided = append(decided, e)
			continue
		}
		refused = append(refused, err)
		if !errors.Is(err, deadletter.ErrNoMessage) && !errors.Is(err, deadletter.ErrNotDeadLetter) {
			break
		}
	}
	showList(c, decided, messageColumns)
	c.remark("%d of %d dead letters are decided on\n", len(decided), len(numbers))
	return errors.Join(refused...)
}

// reasonFlag is the reason of an action.
type reasonFlag struct {
	Reason string `placeholder:"TEXT" help:"Why, for the list of operators' actions."`
}

const longestReason = 500 // runes

// AfterApply lets the trigger that records the action know the reason.
func (r reasonFlag) AfterApply(o *postgres.Options) error {
	if utf8.RuneCountInString(r.Reason) > longestReason {
		return fmt.Errorf("--reason has more than %d characters", longestReason)
	}
	o.Settings["payonce.reason"] = r.Reason
	return nil
}

// operator names the user of the operating system.
func operator() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return "cli:" + u.Username
	}
	return "cli:uid " + strconv.Itoa(os.Getuid()) // a container may have no names
}
