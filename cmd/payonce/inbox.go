package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
)

type inboxCmd struct {
	List    inboxListCmd    `cmd:"" help:"List dead letters, those of each charge in their order."`
	Show    inboxShowCmd    `cmd:"" help:"Show one message with its payload, whatever its status is."`
	Retry   inboxRetryCmd   `cmd:"" help:"Make dead letters due at once, with no attempts counted. They are given by their numbers, or selected by flags."`
	Discard inboxDiscardCmd `cmd:"" help:"Discard dead letters without handling them, and unblock the messages behind them. They are given as for retry. It cannot be undone."`
}

// inboxFilter selects messages.
type inboxFilter struct {
	Charge   string         `placeholder:"ID" help:"Only the messages of this charge, or of this refund: each refund has its own."`
	Type     string         `placeholder:"refund.succeeded.v1" help:"Only messages of this type."`
	Receiver string         `placeholder:"notification" help:"Only messages for this receiver."`
	Older    model.Duration `placeholder:"1h" help:"Only messages that were received at least so long ago."`
}

type inboxListCmd struct {
	inboxFilter

	Status string `default:"dead" enum:"dead,discarded" help:"Status of the messages: dead (a dead letter) or discarded."`
	Limit  *int   `placeholder:"N" help:"Number of messages, oldest first. Without it 1000, and with --json all."`
	JSON   bool   `name:"json" help:"Print the messages as JSON."`
}

const (
	inboxPage  = 500  // messages that are read at once
	inboxLines = 1000 // limit of a list for people
)

func (l inboxListCmd) check() error {
	if l.Limit != nil && *l.Limit < 1 {
		return errors.New("--limit must be 1 or more")
	}
	return nil
}

// read returns the messages of a status that the filter selects, at most limit, in the order in
// which they were received.
func (f inboxFilter) read(ctx context.Context, db *postgres.DB, status inbox.Status, limit int) (entries []inbox.Entry, err error) {
	var until time.Time
	if err := db.QueryRow(ctx, `select clock_timestamp() - $1::interval`, time.Duration(f.Older)).Scan(&until); err != nil {
		return nil, fmt.Errorf("read the database's time: %w", err)
	}
	matches := func(want, is string) bool { return want == "" || want == is }
	for after, more := int64(0), true; more && len(entries) < limit; {
		page, err := inbox.List(ctx, db, status, after, inboxPage)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			after = e.Number
			if matches(f.Charge, e.OrderingKey) && matches(f.Type, e.Type) && matches(f.Receiver, e.Receiver) && !e.ReceivedAt.After(until) {
				entries = append(entries, e)
			}
		}
		more = len(page) == inboxPage
	}
	return entries[:min(limit, len(entries))], nil
}

// run prints a note on stderr where the limit left some out. A program gets all: it could
// not see that some are left out.
func (l inboxListCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	limit := inboxLines
	if l.Limit != nil {
		limit = *l.Limit
	} else if l.JSON {
		limit = math.MaxInt - 1
	}
	entries, err := l.read(ctx, db, inbox.Status(l.Status), limit+1)
	if err != nil {
		return err
	}
	const header = "ID\tRECEIVED (UTC)\tRECEIVER\tCHARGE\tTYPE\tATTEMPTS\tWAITS\tDEATHS\tBEHIND\tREASON"
	printList(&c.stdout, l.JSON, entries[:min(limit, len(entries))], header, func(e inbox.Entry) []any {
		reason := e.LastError
		if e.Status == inbox.StatusDiscarded {
			reason = "discarded by " + e.DecidedBy + ": " + reason
		}
		return []any{
			e.Number, e.ReceivedAt.Format(time.DateTime), e.Receiver, e.OrderingKey, e.Type,
			e.Attempts, e.Waits, e.Deaths, e.Behind, reason,
		}
	})
	if len(entries) > limit {
		c.stderr.printf("there are more than %d: raise --limit\n", limit)
	}
	return nil
}

type inboxShowCmd struct {
	ID   int64 `arg:"" help:"The message, by its number in the list."`
	JSON bool  `name:"json" help:"Print the message as JSON."`
}

// wholeMessage is a message with what its sender wrote. A payload that is no JSON is shown
// in base64.
type wholeMessage struct {
	inbox.Entry

	Metadata json.RawMessage `json:"metadata"`
	Payload  any             `json:"payload"`
}

func (s inboxShowCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	e, err := inbox.Show(ctx, db, s.ID)
	if err != nil {
		return err
	}
	m := wholeMessage{Entry: e, Metadata: e.Metadata, Payload: e.Payload}
	if json.Valid(e.Payload) {
		m.Payload = json.RawMessage(e.Payload)
	}
	if s.JSON {
		c.stdout.json(m)
		return nil
	}
	c.stdout.table("", slices.DeleteFunc([][]any{
		{"id", m.Number},
		{"status", m.Status},
		{"receiver", m.Receiver},
		{"charge", m.OrderingKey},
		{"type", m.Type},
		{"message id", m.MessageID},
		{"reason", m.LastError},
		{"attempts", m.Attempts},
		{"waits", m.Waits},
		{"deaths", m.Deaths},
		{"duplicates", m.Duplicates},
		{"behind it", m.Behind},
		{"holder", processOf(m.Holder)},
		{"received", m.ReceivedAt},
		{"due", m.DueAt},
		{"finished", timeOr(m.FinishedAt, "")},
		{"decided", timeOr(m.DecidedAt, "")},
		{"decided by", m.DecidedBy},
		{"metadata", string(m.Metadata)},
	}, func(row []any) bool { return row[1] == "" }))
	c.stdout.printf("payload\n")
	c.stdout.json(m.Payload)
	return nil
}

// processOf is the host and the process of a holder, without what makes its start unique.
func processOf(holder string) string {
	process, _, _ := strings.Cut(holder, "/")
	return process
}

type inboxRetryCmd struct {
	IDs []int64 `arg:"" optional:"" name:"id" help:"Messages, by their numbers in the list. Without them the dead letters that the flags select."`

	inboxFilter
	reasonFlag

	All  bool `help:"All dead letters."`
	JSON bool `name:"json" help:"Print the messages as JSON."`
}

const longestReason = 500 // runes

func (r inboxRetryCmd) check() error {
	filtered := r.inboxFilter != inboxFilter{}
	switch {
	case len(r.IDs) == 0 && !filtered && !r.All:
		return errors.New("say which: numbers, --charge, --type, --receiver, --older, or --all")
	case len(r.IDs) > 0 && (filtered || r.All), filtered && r.All:
		return errors.New("numbers, flags that select, or --all, but only one of them")
	}
	return r.checkLength()
}

func (r inboxRetryCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return r.each(ctx, c, db, inbox.Retry)
}

type inboxDiscardCmd struct{ inboxRetryCmd }

func (d inboxDiscardCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return d.each(ctx, c, db, inbox.Discard)
}

// each decides on the messages in the order given, or in which they were received. One that
// cannot be decided on is named on stderr and does not keep the others from it; the exit code
// is then 1. Another error ends it.
//
// If we die here: each message is decided on, with its operator and reason, or still a dead
// letter. The operator repeats the command, which selects what is left.
// Test: TestInboxDecisions_ofManyMessages.
func (r inboxRetryCmd) each(
	ctx context.Context, c *console, db *postgres.DB,
	decide func(ctx context.Context, q postgres.Querier, number int64, actor string) error,
) error {
	numbers := r.IDs
	if len(numbers) == 0 { // all at first: what dies anew meanwhile is not selected once more
		selected, err := r.read(ctx, db, inbox.StatusDead, math.MaxInt)
		if err != nil {
			return err
		}
		for _, e := range selected {
			numbers = append(numbers, e.Number)
		}
	}
	decided := []inbox.Entry{}
	var refused []error
	for _, number := range numbers {
		var e inbox.Entry
		err := decide(ctx, db, number, operator())
		if err == nil {
			e, err = inbox.Show(ctx, db, number)
		}
		if err != nil {
			refused = append(refused, err)
			if errors.Is(err, inbox.ErrNoMessage) || errors.Is(err, inbox.ErrNotDeadLetter) {
				continue
			}
			break
		}
		decided = append(decided, e)
		if !r.JSON {
			c.stdout.printf("%d %s: %s of %s for %s\n", e.Number, e.Status, oneLine(e.Type), oneLine(e.OrderingKey), e.Receiver)
		}
	}
	if r.JSON {
		c.stdout.json(map[string]any{"data": decided})
	}
	if len(r.IDs) == 0 {
		c.stderr.printf("%d of %d dead letters are decided on\n", len(decided), len(numbers))
	}
	return errors.Join(refused...)
}

// operator names the user of the operating system.
func operator() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return "cli:" + u.Username
	}
	return "cli:uid " + strconv.Itoa(os.Getuid()) // a container may have no names
}
