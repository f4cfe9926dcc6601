package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
)

const (
	pageRows   = 50
	searchRows = 20_000 // charges that one page of a search reads at most
)

// row is a charge of the list.
type row struct {
	ChargeID   string
	MerchantID string
	View       domain.View
}

// A charge's ID begins with the time of its request, so the primary key is the order of the
// list. Without an index for the rest of a search, a page of it reads a bounded part.
const selectCharges = `
select charge_id, merchant_id, view
  from (
       select charge_id, merchant_id, status, view
         from charge_list
        where generation = (select generation from projections where state = 'live')
          and charge_id < $1
        order by charge_id desc
        limit $4) read
 where ($2 = '' or status = $2)
   and ($3::bigint is null or (view ->> 'amount')::bigint = $3)
 order by charge_id desc
 limit $5`

const selectLastRead = `
select min(charge_id)
  from (
       select charge_id
         from charge_list
        where generation = (select generation from projections where state = 'live')
          and charge_id < $1
        order by charge_id desc
        limit $2) read
having count(*) = $2`

// A name is a charge, a refund, an order or an idempotency key, of any merchant. The indexes of
// orders and keys begin with the merchant.
const selectNamed = `
select charge_id, merchant_id, view
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and charge_id in (
         select $1
          union all
         select o.charge_id
           from merchants m
          cross join lateral (
                select charge_id
                  from charge_list
                 where generation = (select generation from projections where state = 'live')
                   and merchant_id = m.merchant_id
                   and order_id = $1
                 order by created_at desc, charge_id desc
                 limit $2) o
          union all
         select split_part(k.location, '/', 4)
           from merchants m
          cross join (values ('POST /v1/charges'), ('POST /v1/charges/:id/refunds'), ('POST /v1/charges/:id/cancel')) as o (operation)
           join idempotency_keys k
             on k.scope = m.merchant_id
            and k.operation = o.operation
            and k.key = $1)
 order by charge_id desc
 limit $2`

// search is the page of charges, with what was asked.
type search struct {
	Name, Status, Amount, After string
	Statuses                    []string
	Rows                        []row
	Next                        string // the query of the next page; "" if there is none
	Partial                     bool   // the next page may have more although this one is short
}

// last is behind the ID of every charge.
const last = "ch_~"

func (c *Console) charges(r *http.Request) (any, error) {
	q := r.URL.Query()
	s := search{
		Name: strings.TrimSpace(q.Get("q")), Status: q.Get("status"), Amount: strings.TrimSpace(q.Get("amount")), After: q.Get("after"),
		Statuses: []string{"pending", "succeeded", "failed", "partially_refunded", "refunded"},
	}
	if strings.ContainsRune(s.Name+s.Status+s.After, 0) || len(s.Name) > 255 {
		return nil, problem{http.StatusBadRequest, "The search holds what no name can hold."}
	}
	if s.Name != "" {
		return c.named(r, s)
	}
	var amount *int64
	if s.Amount != "" {
		n, err := strconv.ParseInt(s.Amount, 10, 64)
		if err != nil {
			return nil, problem{http.StatusBadRequest, "An amount is a whole number of minor units, such as 1000 for 10.00."}
		}
		amount = &n
	}
	after, read := s.After, pageRows+1
	if after == "" {
		after = last
	}
	if s.Status != "" || amount != nil {
		read = searchRows
	}
	found, err := c.rows(r, selectCharges, after, s.Status, amount, read, pageRows+1)
	if err != nil {
		return nil, err
	}
	s.Rows = found[:min(len(found), pageRows)]
	next := ""
	if len(found) > pageRows {
		next = s.Rows[pageRows-1].ChargeID
	} else if read == searchRows {
		var end *string
		if err := c.db.Load().QueryRow(r.Context(), selectLastRead, after, read).Scan(&end); err == nil && end != nil {
			next, s.Partial = *end, true
		}
	}
	if next != "" {
		s.Next = "/charges?" + url.Values{"status": {s.Status}, "amount": {s.Amount}, "after": {next}}.Encode()
	}
	return s, nil
}

func (c *Console) named(r *http.Request, s search) (any, error) {
	found, err := c.rows(r, selectNamed, s.Name, pageRows)
	s.Rows = found
	return s, err
}

func (c *Console) rows(r *http.Request, sql string, args ...any) ([]row, error) {
	rows, _ := c.db.Load().Query(r.Context(), sql, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, func(one pgx.CollectableRow) (found row, err error) {
		var view []byte
		if err := one.Scan(&found.ChargeID, &found.MerchantID, &view); err != nil {
			return found, err
		}
		return found, json.Unmarshal(view, &found.View)
	})
}

// history is the page of a charge.
type history struct {
	Name    string
	Charges []audit.TimelineCharge
	Drawing template.HTML // of lanes, which escapes what others have stored
	Entries []entry
	Steps   []domain.StepState
	AsOf    time.Time
	First   time.Time
}

// entry is a line of the timeline.
type entry struct {
	audit.TimelineEntry

	Dropped string // the constraint that dropped duplicates of it
	Since   time.Duration
}

// guards are the constraints that refuse a second of each kind.
var guards = map[string]string{
	"received": "inbox_message_once", "quarantined": "inbox_message_once", "key": "idempotency_keys_once",
	"event": "ledger_events_version_once", "webhook": "ledger_events_event_once",
}

func (c *Console) charge(r *http.Request) (any, error) {
	h, err := c.history(r, r.PathValue("id"))
	return h, err
}

func (c *Console) history(r *http.Request, name string) (history, error) {
	h := history{Name: name}
	if name == "" || len(name) > 255 || strings.ContainsRune(name, 0) {
		return h, audit.ErrNotFound
	}
	t, err := audit.ReadTimeline(r.Context(), c.db.Load(), name, "")
	if err != nil {
		return h, err
	}
	h.Charges, h.AsOf = t.Charges, t.AsOf
	if len(t.Entries) > 0 {
		h.First = t.Entries[0].At
	}
	for _, e := range t.Entries {
		one := entry{TimelineEntry: e, Since: e.At.Sub(h.First)}
		if n := fmt.Sprint(e.Detail["duplicates"]); e.What == "received" && n != "0" || e.What == "quarantined" {
			one.Dropped = guards[e.What]
		}
		h.Entries = append(h.Entries, one)
	}
	if len(t.Charges) == 1 {
		found, err := c.rows(r, selectNamed, t.Charges[0].ID, 1)
		if err != nil {
			return h, err
		}
		if i := slices.IndexFunc(found, func(f row) bool { return f.ChargeID == t.Charges[0].ID }); i >= 0 {
			h.Steps = found[i].View.Steps
		}
	}
	return h, nil
}
