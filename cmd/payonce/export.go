package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bojanz/currency"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

type exportCmd struct {
	reader

	From     instant `required:"" placeholder:"2026-11-01" help:"Export what was recorded at this time or later: a day in UTC, or a time (RFC 3339)."`
	To       instant `required:"" placeholder:"2026-12-01" help:"Export what was recorded before this time."`
	Merchant string  `placeholder:"ID" help:"Export only postings of this merchant's charges."`
	Format   string  `enum:"csv,beancount,hledger" default:"csv" help:"csv, beancount or hledger."`
}

// instant is a day in UTC, or a time, on the command line.
type instant struct{ time.Time }

// UnmarshalText reads a flag.
func (i *instant) UnmarshalText(text []byte) (err error) {
	layout := time.RFC3339
	if len(text) == len(time.DateOnly) {
		layout = time.DateOnly
	}
	i.Time, err = time.Parse(layout, string(text))
	return err
}

func (e exportCmd) check() error {
	if !e.From.Before(e.To.Time) {
		return errors.New("--from must be before --to")
	}
	return nil
}

// selectPosted reads the ledger in the order of transaction ids. No index has the time.
const selectPosted = `
select e.event_id::text,
       e.stream_id,
       e.version,
       e.type,
       e.merchant_id,
       e.recorded_at,
       coalesce((
         select data ->> 'order_id'
           from ledger_events
          where stream_id = e.stream_id
            and version = 1), ''),
       p.legs
  from ledger_events e
 cross join lateral (
         select jsonb_agg(to_jsonb(l) order by leg) as legs
           from ledger_postings l
          where stream_id = e.stream_id
            and version = e.version) p
 where e.recorded_at >= $1
   and e.recorded_at < $2
   and (e.merchant_id = $3 or $3 = '')
   and p.legs is not null
 order by e.txid, e.position`

// posted is an event with its postings.
type posted struct {
	EventID, ChargeID, Type, MerchantID, OrderID string

	Version    int
	RecordedAt time.Time
	Legs       []struct {
		Leg           int    `json:"leg"`
		Debit, Credit string // kind:owner:currency
		Amount        int64  `json:"amount"` // minor units
		Currency      string `json:"currency"`
	}
}

// run exports with one statement, which has one snapshot, and holds one event at a time.
func (e exportCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	tx, err := db.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it only reads
	var p posted
	out := bufio.NewWriter(&c.stdout)
	write := e.writer(out)
	c.live, c.every = false, eachLine // stdout may be the same terminal
	events, end := c.progress("events exported")
	defer end()
	rows, _ := tx.Query(ctx, selectPosted, e.From.Time, e.To.Time, e.Merchant) // ForEachRow returns its error
	_, err = pgx.ForEachRow(rows, []any{&p.EventID, &p.ChargeID, &p.Version, &p.Type, &p.MerchantID, &p.RecordedAt, &p.OrderID, &p.Legs}, func() error {
		events.Add(1)
		return write(p)
	})
	if err != nil {
		return fmt.Errorf("export event %d: %w", events.Load(), err)
	}
	if events.Load() == 0 {
		if err := requireMerchant(ctx, db, e.Merchant); err != nil {
			return err
		}
	}
	return out.Flush()
}

// writer returns what writes an event in the format. It leaves errors of out to the last Flush.
func (e exportCmd) writer(out *bufio.Writer) func(posted) error {
	if e.Format != "csv" {
		return newJournal(out, e.Format, e.From.Time).write
	}
	table := csv.NewWriter(out) // which has no buffer of its own then
	_ = table.Write([]string{"event_id", "charge_id", "version", "leg", "recorded_at", "type", "merchant_id", "order_id", "debit", "credit", "amount", "currency"})
	return func(p posted) error {
		for _, l := range p.Legs {
			amount, err := currency.NewAmountFromInt64(l.Amount, l.Currency)
			if err != nil {
				return err
			}
			row := []string{
				p.EventID, p.ChargeID, strconv.Itoa(p.Version), strconv.Itoa(l.Leg), p.RecordedAt.UTC().Format(time.RFC3339Nano), p.Type,
				p.MerchantID, p.OrderID, l.Debit, l.Credit, amount.Number(), l.Currency,
			}
			for i := range row {
				row[i] = harmless(row[i])
			}
			_ = table.Write(row)
		}
		return nil
	}
}

// separated are the beginnings of formulas behind the separator that some countries' spreadsheets use.
var separated = strings.NewReplacer(";=", ";'=", ";+", ";'+", ";-", ";'-", ";@", ";'@")

// harmless keeps a spreadsheet from taking a text of others for a formula.
func harmless(cell string) string {
	cell = separated.Replace(oneLine(cell))
	if strings.IndexAny(cell, "=+-@\uff1d\uff0b\uff0d\uff20") == 0 {
		return "'" + cell
	}
	return cell
}
