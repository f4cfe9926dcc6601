package audit

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// selectPage reads the ids of the next streams, also of one that lacks its first event: those of the next 1,000
// events, which are found by their index, whatever the planner knows of the table.
const selectPage = `
-- audit.selectPage
select distinct stream_id
  from (
       select stream_id
         from ledger_events
        where stream_id > $1
        order by stream_id
        limit 1000) page
 order by stream_id`

// selectFiled reads what is stored of events beside their data, with their postings as legs writes them.
const selectFiled = `
-- audit.selectFiled
select e.stream_id,
       e.version,
       e.type,
       e.webhook,
       e.merchant_id,
       coalesce(p.legs, '') as legs
  from ledger_events e
  left join lateral (
       select string_agg(format('%s: %s to %s, %s %s of %s', leg, debit, credit, amount, currency, merchant_id),
                         '; ' order by leg) as legs
         from ledger_postings
        where stream_id = e.stream_id
          and version = e.version) p on true
 where e.stream_id = any($1)
 order by e.stream_id, e.version, e.position`

type filedEvent struct {
	StreamID   string
	Version    int
	Type       string
	Webhook    bool
	MerchantID string
	Legs       string
}

// streamChecks fold every stream with the domain's own rules.
type streamChecks struct{ legal, postings Check }

func newStreamChecks() *streamChecks {
	return &streamChecks{newCheck("streams are legal"), newCheck("postings are what the events cause")}
}

func (s *streamChecks) checks() []Check { return []Check{s.legal, s.postings} }

// seeAll checks the whole ledger once, page by page. A stream that begins meanwhile may be left to the
// next audit.
func (s *streamChecks) seeAll(ctx context.Context, q postgres.Querier) error {
	for last := ""; ; {
		rows, _ := q.Query(ctx, selectPage, last) // CollectRows returns its error
		page, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err == nil && len(page) > 0 {
			err = s.see(ctx, q, page)
		}
		if err != nil {
			return fmt.Errorf("read the ledger after %q: %w", last, err)
		}
		if len(page) == 0 {
			return nil
		}
		last = page[len(page)-1]
	}
}

// see checks some streams, each as far as it was filed when they were read.
func (s *streamChecks) see(ctx context.Context, q postgres.Querier, ids []string) error {
	all, err := collect[filedEvent](ctx, q, "how events are filed", selectFiled, ids)
	if err != nil {
		return err
	}
	filed := map[string][]filedEvent{}
	for _, e := range all {
		filed[e.StreamID] = append(filed[e.StreamID], e)
	}
	return ledger.Each(ctx, q, ids, func(stream ledger.Stream, unreadable error) bool {
		s.seeStream(stream, unreadable, filed[stream.ID])
		return true
	})
}

func (s *streamChecks) seeStream(stream ledger.Stream, unreadable error, filed []filedEvent) {
	complaint, charge := "", ledger.New(stream.ID).Charge
	for i, e := range stream.Events[:min(len(stream.Events), len(filed))] {
		complaint = cmp.Or(complaint, misfiled(filed[i], i+1, stream.Charge.MerchantID))
		if _, err := charge.Append(e.Event); err != nil {
			complaint = cmp.Or(complaint, err.Error())
		}
		s.postings.see(misposted(filed[i], domain.Postings(charge, e.Event)))
		charge = domain.Fold(charge, e.Event)
	}
	if unreadable != nil {
		complaint = cmp.Or(complaint, unreadable.Error())
	}
	if complaint != "" {
		complaint = stream.ID + ": " + complaint
	}
	s.legal.see(complaint)
}

// misfiled finds an event that does not follow the one before it, or that is filed under another merchant
// than the charge's own, or wrongly as a webhook event or none.
func misfiled(e filedEvent, version int, merchant string) string {
	switch {
	case e.Version != version:
		return fmt.Sprintf("version %d stands where %d should", e.Version, version)
	case e.MerchantID != merchant:
		return fmt.Sprintf("version %d is filed under %s, the charge is %s's", e.Version, e.MerchantID, merchant)
	case e.Webhook != (domain.EventTypeNamed(e.Type).Webhook != ""):
		return fmt.Sprintf("version %d (%s) is a webhook event: %t", e.Version, e.Type, e.Webhook)
	}
	return ""
}

func misposted(e filedEvent, due []domain.Posting) string {
	legs := make([]string, len(due)) // as selectFiled writes them
	for i, p := range due {
		legs[i] = fmt.Sprintf("%d: %s to %s, %d %s of %s", i+1, p.Debit, p.Credit, p.Amount, p.Currency, e.MerchantID)
	}
	if text := strings.Join(legs, "; "); e.Legs != text {
		return fmt.Sprintf("%s version %d (%s): posted %q, should be %q", e.StreamID, e.Version, e.Type, e.Legs, text)
	}
	return ""
}
