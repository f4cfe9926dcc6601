package audit

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
)

// selectStreams reads a page of streams. A page is the streams behind $1 that have some $2
// events together, each of them whole, so that memory and the time of one statement stay
// bounded however long the ledger is.
const selectStreams = `
select e.stream_id,
       e.version,
       e.type,
       e.webhook,
       e.merchant_id,
       e.data,
       coalesce(p.legs, '') as legs
  from ledger_events e
  left join lateral (
       select string_agg(format('%s: %s to %s, %s %s of %s', leg, debit, credit, amount, currency, merchant_id),
                         '; ' order by leg) as legs
         from public.ledger_postings
        where stream_id = e.stream_id
          and version = e.version) p on true
 where e.stream_id > $1
   and e.stream_id <= coalesce((
         select f.stream_id
           from ledger_events f
          where f.stream_id > $1
          order by f.stream_id, f.version
         offset $2
          limit 1), (
         select max(f.stream_id)
           from ledger_events f))
 order by e.stream_id, e.version, e.position`

const (
	pageEvents = 1000
	pageBytes  = 16 << 20 // of events: what the ledger reads of one charge at most
)

type storedEvent struct {
	StreamID   string
	Version    int
	Type       string
	Webhook    bool
	MerchantID string
	Data       []byte
	Legs       string // its postings, as legs writes them
}

// streamChecks fold every stream with the domain's own rules.
type streamChecks struct {
	legal, postings Check
}

// checkStreams reads the whole ledger once, page by page. A stream that begins meanwhile
// may be left to the next audit.
func checkStreams(ctx context.Context, of source) ([]Check, error) {
	checks := streamChecks{
		legal:    newCheck("streams are legal"),
		postings: newCheck("postings are what the events cause"),
	}
	for last, limit := "", pageEvents; ; {
		page, full, err := readPage(ctx, of, last, limit)
		switch {
		case err != nil || len(page) == 0:
			return []Check{checks.legal, checks.postings}, err
		case full && limit > 1:
			limit = 1
			continue
		case full:
			checks.legal.see(fmt.Sprintf("%s: its events have more than %d bytes", page[0].StreamID, pageBytes))
			last = page[0].StreamID
			continue
		}
		last, limit = page[len(page)-1].StreamID, pageEvents
		for from, i := 0, 1; i <= len(page); i++ {
			if i == len(page) || page[i].StreamID != page[from].StreamID {
				checks.see(page[from:i])
				from = i
			}
		}
	}
}

// readPage reads a page of streams. It is full, and ends anywhere, at pageBytes.
func readPage(ctx context.Context, of source, last string, limit int) (page []storedEvent, full bool, err error) {
	b := &pgx.Batch{}
	of.queue(b, selectStreams, last, limit).Query(func(rows pgx.Rows) error {
		for size := 0; rows.Next() && !full; full = size > pageBytes {
			e, err := pgx.RowToStructByName[storedEvent](rows)
			if err != nil {
				return err
			}
			page, size = append(page, e), size+len(e.Data)
		}
		return rows.Err()
	})
	if err := of.Read(ctx, b); err != nil {
		return nil, false, fmt.Errorf("read the ledger: %w", err)
	}
	return page, full, nil
}

// see checks one whole stream.
func (s *streamChecks) see(stream []storedEvent) {
	events, err := decode(stream)
	if err == nil {
		_, err = domain.Charge{}.Append(events...)
	}
	if err != nil {
		s.legal.see(fmt.Sprintf("%s: %v", stream[0].StreamID, err))
	} else {
		s.legal.see(cmp.Or(gap(stream), misfiled(stream, events)))
	}
	var charge domain.Charge
	for i, e := range events {
		s.postings.see(misposted(stream[i], legs(domain.Postings(charge, e), stream[i].MerchantID)))
		charge = domain.Fold(charge, e)
	}
}

func gap(stream []storedEvent) string {
	for i, e := range stream {
		if e.Version != i+1 {
			return fmt.Sprintf("%s: version %d stands where %d should", e.StreamID, e.Version, i+1)
		}
	}
	return ""
}

// decode returns the events up to the first that cannot be read.
func decode(stream []storedEvent) ([]domain.Event, error) {
	events := make([]domain.Event, 0, len(stream))
	for _, stored := range stream {
		e, err := domain.Decode(stored.Type, stored.Data)
		if err != nil {
			return events, fmt.Errorf("version %d: %w", stored.Version, err)
		}
		events = append(events, e)
	}
	return events, nil
}

// misfiled finds an event that is filed under another merchant than the charge's own, or wrongly as a
// webhook event or none.
func misfiled(stream []storedEvent, events []domain.Event) string {
	owner := domain.Fold(domain.Charge{}, events...).MerchantID
	for _, e := range stream {
		if e.MerchantID != owner {
			return fmt.Sprintf("%s: version %d is filed under %s, the charge is %s's", e.StreamID, e.Version, e.MerchantID, owner)
		}
		if e.Webhook != (domain.EventTypeNamed(e.Type).Webhook != "") {
			return fmt.Sprintf("%s: version %d (%s) is a webhook event: %t", e.StreamID, e.Version, e.Type, e.Webhook)
		}
	}
	return ""
}

// legs writes postings as selectStreams does.
func legs(postings []domain.Posting, merchant string) string {
	lines := make([]string, len(postings))
	for i, p := range postings {
		lines[i] = fmt.Sprintf("%d: %s to %s, %d %s of %s", i+1, p.Debit, p.Credit, p.Amount, p.Currency, merchant)
	}
	return strings.Join(lines, "; ")
}

func misposted(e storedEvent, due string) string {
	if e.Legs == due {
		return ""
	}
	return fmt.Sprintf("%s version %d (%s): posted %q, should be %q", e.StreamID, e.Version, e.Type, e.Legs, due)
}
