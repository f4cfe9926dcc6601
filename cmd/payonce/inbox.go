package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	List    inboxListCmd    `cmd:"" help:"List parked messages, those of each charge in their order."`
	Show    inboxShowCmd    `cmd:"" help:"Show one message whole, whatever became of it."`
	Retry   inboxRetryCmd   `cmd:"" help:"Make parked messages due, as if they had never been tried."`
	Discard inboxDiscardCmd `cmd:"" help:"End parked messages undone and let those behind them go on. It cannot be taken back."`
}

type inboxListCmd struct {
	Status string `default:"dead" enum:"dead,discarded" help:"dead (parked) or discarded."`
	Charge string `placeholder:"ID" help:"List this charge's alone."`
	Limit  *int   `placeholder:"N" help:"List so many, oldest first. Unless it is given, 1000; as JSON all."`
	JSON   bool   `name:"json" help:"Print the messages as JSON."`
}

// inboxPage is how many messages are read at once.
const inboxPage = 500

// inboxLines is the limit of a list for people.
const inboxLines = 1000

// Validate refuses a limit of nothing.
func (c inboxListCmd) Validate() error {
	if c.Limit != nil && *c.Limit < 1 {
		return errors.New("--limit must be 1 or more")
	}
	return nil
}

// Run lists on stdout. A note on stderr says that the limit left some out.
func (c inboxListCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error {
		more, err := c.list(ctx, os.Stdout, db)
		if more {
			fmt.Fprintf(os.Stderr, "there are more than %d: raise --limit\n", c.limit())
		}
		return err
	})
}

// limit is --limit or the default. A program gets all: it could not see that some are left out.
func (c inboxListCmd) limit() int {
	switch {
	case c.Limit != nil:
		return *c.Limit
	case c.JSON:
		return math.MaxInt
	}
	return inboxLines
}

func (c inboxListCmd) list(ctx context.Context, w io.Writer, q postgres.QuerierWith) (more bool, err error) {
	entries := []inbox.Entry{}
	for after := int64(0); ; {
		page, err := inbox.List(ctx, q, inbox.Status(c.Status), after, inboxPage)
		if err != nil {
			return false, err
		}
		for _, e := range page {
			if c.Charge != "" && e.OrderingKey != c.Charge {
				continue
			}
			if len(entries) == c.limit() {
				return true, c.print(w, entries)
			}
			entries = append(entries, e)
		}
		if len(page) < inboxPage {
			return false, c.print(w, entries)
		}
		after = page[len(page)-1].Number
	}
}

func (c inboxListCmd) print(w io.Writer, entries []inbox.Entry) error {
	const header = "ID\tRECEIVED (UTC)\tRECEIVER\tCHARGE\tTYPE\tATTEMPTS\tWAITS\tDEATHS\tBEHIND\tREASON"
	return printList(w, c.JSON, entries, header, func(e inbox.Entry) []any {
		reason := e.LastError
		if e.Status == inbox.StatusDiscarded {
			reason = "discarded by " + e.DecidedBy + ": " + reason
		}
		return []any{
			e.Number, e.ReceivedAt.Format(time.DateTime), e.Receiver, e.OrderingKey, e.Type,
			e.Attempts, e.Waits, e.Deaths, e.Behind, reason,
		}
	})
}

type inboxShowCmd struct {
	ID   int64 `arg:"" help:"The message, by its number in the list."`
	JSON bool  `name:"json" help:"Print the message as JSON."`
}

// Run shows the payload too.
func (c inboxShowCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error { return c.show(ctx, os.Stdout, db) })
}

func (c inboxShowCmd) show(ctx context.Context, w io.Writer, q postgres.QuerierWith) error {
	e, err := inbox.Show(ctx, q, c.ID)
	if err != nil {
		return err
	}
	whole := wholeMessage{Entry: e, Metadata: e.Metadata, Payload: e.Payload}
	if json.Valid(e.Payload) {
		whole.Payload = json.RawMessage(e.Payload)
	}
	if c.JSON {
		return printJSON(w, whole)
	}
	return whole.write(w)
}

// wholeMessage is a message with what its sender wrote. A payload that is no JSON
// is shown in base64.
type wholeMessage struct {
	inbox.Entry

	Metadata json.RawMessage `json:"metadata"`
	Payload  any             `json:"payload"`
}

func (m wholeMessage) write(w io.Writer) error {
	rows := slices.DeleteFunc([][]any{
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
	}, func(row []any) bool { return row[1] == "" })
	if err := printTable(w, "", rows); err != nil {
		return err
	}
	fmt.Fprintln(w, "payload")
	return printJSON(w, m.Payload)
}

type inboxRetryCmd struct {
	IDs  []int64 `arg:"" name:"id" help:"Messages, by their numbers in the list."`
	JSON bool    `name:"json" help:"Print the messages as JSON."`
}

// Run retries in the order given. A message that cannot be retried is named on stderr and
// does not keep the others from it; the exit code is then 1.
func (c inboxRetryCmd) Run(ctx context.Context) error {
	return decideOn(ctx, inbox.Retry, c.IDs, c.JSON)
}

type inboxDiscardCmd inboxRetryCmd

// Run discards in the order given, as retry does.
func (c inboxDiscardCmd) Run(ctx context.Context) error {
	return decideOn(ctx, inbox.Discard, c.IDs, c.JSON)
}

// decision is inbox.Retry or inbox.Discard.
type decision func(ctx context.Context, q postgres.QuerierWith, number int64, actor string) error

func decideOn(ctx context.Context, decide decision, ids []int64, asJSON bool) error {
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error {
		return decideAll(ctx, os.Stdout, db, decide, ids, asJSON)
	})
}

func decideAll(ctx context.Context, w io.Writer, db *postgres.DB, decide decision, ids []int64, asJSON bool) error {
	decided := []inbox.Entry{}
	var refused []error
	for _, id := range ids {
		if err := decide(ctx, db, id, operator()); err != nil {
			refused = append(refused, err)
			continue
		}
		e, err := inbox.Show(ctx, db, id)
		if err != nil {
			refused = append(refused, err)
			continue
		}
		decided = append(decided, e)
		if !asJSON {
			fmt.Fprintf(w, "%d %s: %s of %s for %s\n", e.Number, e.Status, oneLine(e.Type), oneLine(e.OrderingKey), e.Receiver)
		}
	}
	if asJSON {
		refused = append(refused, printJSON(w, map[string]any{"data": decided}))
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
