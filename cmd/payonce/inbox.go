package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

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

func (f inboxFilter) list(ctx context.Context, db *postgres.DB, status deadletter.Status) ([]deadletter.Entry, error) {
	return deadletter.List(ctx, db, deadletter.Filter{
		Status: status, OrderingKey: f.Charge, Type: f.Type, Receiver: f.Receiver, Older: time.Duration(f.Older),
	}, 0, 0)
}

type inboxListCmd struct {
	inboxFilter

	Status string `default:"dead" enum:"dead,discarded" help:"Status of the messages: dead (a dead letter) or discarded."`
}

func (l inboxListCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	entries, err := l.list(ctx, db, deadletter.Status(l.Status))
	return showList(c, entries, err, messageColumns)
}

const messageColumns = "id received_at receiver ordering_key type attempts waits deaths behind status decided_by last_error"

type inboxShowCmd struct {
	ID int64 `arg:"" help:"The message, by its number in the list."`
}

// Run prints JSON for people too: what others wrote is escaped. A payload that is no JSON is shown in base64.
func (s inboxShowCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	e, err := deadletter.Show(ctx, db, s.ID)
	if err != nil {
		return err
	}
	whole := struct {
		deadletter.Entry

		Metadata json.RawMessage `json:"metadata"`
		Payload  any             `json:"payload"`
	}{e, e.Metadata, e.Payload}
	if json.Valid(e.Payload) {
		whole.Payload = json.RawMessage(e.Payload)
	}
	c.json = true
	c.show(whole, nil)
	return nil
}

type inboxRetryCmd struct {
	IDs []int64 `arg:"" optional:"" name:"id" help:"Messages, by their numbers in the list. Without them the dead letters that the flags select."`

	inboxFilter
	reasonFlag

	All bool `help:"All dead letters."`
}

func (r inboxRetryCmd) AfterApply(o *postgres.Options) error {
	said := slices.DeleteFunc([]bool{len(r.IDs) > 0, r.inboxFilter != inboxFilter{}, r.All}, func(said bool) bool { return !said })
	if len(said) != 1 {
		return errors.New("say which by one of: numbers, flags that select (--charge, --type, --receiver, --older), --all")
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
		selected, err := r.list(ctx, db, deadletter.StatusDead)
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
	c.remark("%d of %d dead letters are decided on\n", len(decided), len(numbers))
	return errors.Join(showList(c, decided, nil, messageColumns), errors.Join(refused...))
}

// reasonFlag is the reason of an action.
type reasonFlag struct {
	Reason string `placeholder:"TEXT" help:"Why, for the list of operators' actions."`
}

// AfterApply lets the trigger that records the action know the reason.
func (r reasonFlag) AfterApply(o *postgres.Options) error {
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
