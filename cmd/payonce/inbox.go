package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
)

type inboxCmd struct {
	List    inboxListCmd    `cmd:"" help:"List dead letters, those of each charge in their order."`
	Show    inboxShowCmd    `cmd:"" help:"Show one message with its payload, whatever its status is."`
	Retry   inboxRetryCmd   `cmd:"" help:"Make dead letters due at once, with no attempts counted."`
	Discard inboxDiscardCmd `cmd:"" help:"Discard dead letters without handling them, and unblock the messages behind them. It cannot be undone."`
}

type inboxListCmd struct {
	Status string `default:"dead" enum:"dead,discarded" help:"Status of the messages: dead (a dead letter) or discarded."`
	Charge string `placeholder:"ID" help:"List only the messages of this charge."`
	Limit  *int   `placeholder:"N" help:"Number of messages, oldest first. Without it 1000, and with --json all."`
	JSON   bool   `name:"json" help:"Print the messages as JSON."`
}

const (
	inboxPage  = 500  // messages that are read at once
	inboxLines = 1000 // limit of a list for people
)

// Validate refuses a limit of nothing.
func (l inboxListCmd) Validate() error {
	if l.Limit != nil && *l.Limit < 1 {
		return errors.New("--limit must be 1 or more")
	}
	return nil
}

// run prints a note on stderr where the limit left some out. A program gets all: it could
// not see that some are left out.
func (l inboxListCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	limit := inboxLines
	if l.Limit != nil {
		limit = *l.Limit
	} else if l.JSON {
		limit = math.MaxInt
	}
	var entries []inbox.Entry
	for after, more := int64(0), true; more && len(entries) <= limit; {
		page, err := inbox.List(ctx, db, inbox.Status(l.Status), after, inboxPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			after = e.Number
			if l.Charge == "" || e.OrderingKey == l.Charge {
				entries = append(entries, e)
			}
		}
		more = len(page) == inboxPage
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
		{"holder", m.Holder},
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

type inboxRetryCmd struct {
	IDs  []int64 `arg:"" name:"id" help:"Messages, by their numbers in the list."`
	JSON bool    `name:"json" help:"Print the messages as JSON."`
}

func (r inboxRetryCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return r.each(ctx, c, db, inbox.Retry)
}

type inboxDiscardCmd inboxRetryCmd

func (d inboxDiscardCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return inboxRetryCmd(d).each(ctx, c, db, inbox.Discard)
}

// each decides on the messages in the order given. One that cannot be decided on is named on
// stderr and does not keep the others from it; the exit code is then 1.
func (r inboxRetryCmd) each(
	ctx context.Context, c *console, db *postgres.DB,
	decide func(ctx context.Context, q postgres.Querier, number int64, actor string) error,
) error {
	decided := []inbox.Entry{}
	var refused []error
	for _, id := range r.IDs {
		err := decide(ctx, db, id, operator())
		var e inbox.Entry
		if err == nil {
			e, err = inbox.Show(ctx, db, id)
		}
		if err != nil {
			refused = append(refused, err)
			continue
		}
		decided = append(decided, e)
		if !r.JSON {
			c.stdout.printf("%d %s: %s of %s for %s\n", e.Number, e.Status, oneLine(e.Type), oneLine(e.OrderingKey), e.Receiver)
		}
	}
	if r.JSON {
		c.stdout.json(map[string]any{"data": decided})
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
