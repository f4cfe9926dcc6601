package console

import (
	"context"
	_ "embed"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/ledger"
)

var (
	//go:embed charges.sql
	selectCharges string
	//go:embed named.sql
	selectNamed string
)

const (
	pageRows   = 50
	searchRows = 2000 // charges that one page of a search reads at most
)

// search is the page of charges, with what was asked.
type search struct {
	Name, Status, Amount string
	Statuses             []domain.Status
	Rows                 []ledger.Stream
	Next                 string // the charge before the next page; "" if there is none
}

func (c *Console) charges(r *http.Request) (any, error) {
	q := r.URL.Query()
	s := search{
		Name: strings.TrimSpace(q.Get("q")), Status: q.Get("status"), Amount: strings.TrimSpace(q.Get("amount")),
		Statuses: []domain.Status{"pending", "requires_action", "succeeded", "failed", "partially_refunded", "refunded"},
	}
	if s.Name != "" {
		return &s, c.find(r.Context(), &s, pageRows, selectNamed, s.Name)
	}
	return &s, c.find(r.Context(), &s, pageRows, selectCharges, q.Get("after"))
}

// find reads a page of the charges whose ids a statement returns: one more than the page has or, for a status or an
// amount, which no index serves, a bounded part, whose charges are read until the page is full.
func (c *Console) find(ctx context.Context, s *search, rows int, sql, about string) error {
	db, most := c.db.Load(), searchRows
	if s.Status+s.Amount == "" {
		most = rows + 1
	}
	read, _ := db.Query(ctx, sql, about, most) // CollectRows returns its error
	ids, err := pgx.CollectRows(read, pgx.RowTo[string])
	if len(ids) == most {
		s.Next = ids[most-1]
	}
	for part := range slices.Chunk(ids, rows+1) {
		if err == nil && len(s.Rows) <= rows {
			err = ledger.Each(ctx, db, part, func(stream ledger.Stream, unreadable error) bool {
				charge := stream.Charge
				if unreadable == nil && charge.MerchantID != "" && (s.Status == "" || string(charge.Status) == s.Status) &&
					(s.Amount == "" || strconv.FormatInt(charge.Amount, 10) == s.Amount) {
					s.Rows = append(s.Rows, stream)
				}
				return len(s.Rows) <= rows
			})
		}
	}
	if len(s.Rows) > rows {
		s.Rows, s.Next = s.Rows[:rows], s.Rows[rows-1].ID
	}
	return err
}

// history is the page of a charge, and of the tour.
type history struct {
	audit.Timeline

	Name string
}

func (c *Console) charge(r *http.Request) (any, error) { return c.history(r, r.PathValue("id")) }

func (c *Console) history(r *http.Request, name string) (history, error) {
	t, err := audit.ReadTimeline(r.Context(), c.db.Load(), name, "")
	return history{t, name}, err
}

// learn is the tour over a charge, by default the newest that succeeded, of which no refund was
// asked.
func (c *Console) learn(r *http.Request) (any, error) {
	name, newest := r.URL.Query().Get("charge"), search{Status: "succeeded"}
	if name == "" {
		if err := c.find(r.Context(), &newest, 1, selectCharges, ""); err != nil || len(newest.Rows) == 0 {
			return history{}, err
		}
		name = newest.Rows[0].ID
	}
	return c.history(r, name)
}

// Rows are the entries of a step of the tour: those whose kind, text and author begin so.
func (h history) Rows(beginnings ...string) (rows []audit.TimelineEntry) {
	for _, e := range h.Entries {
		if slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(e.Kind+" "+e.What+" "+e.Who, b) }) {
			rows = append(rows, e)
		}
	}
	return rows
}

// letters are the page of dead letters, with what operators did lately, or of one message,
// whatever its status is.
type letters struct {
	List    bool
	Entries []deadletter.Entry
	Next    int64 // the message before the next page; 0 if there is none
	Actions []audit.Action
}

func (c *Console) letters(r *http.Request) (any, error) {
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // 0, before every message, where it is none
	entries, err := deadletter.List(r.Context(), c.db.Load(), deadletter.Filter{Status: deadletter.StatusDead}, after, pageRows)
	if err != nil {
		return nil, err
	}
	page := letters{List: true, Entries: entries}
	if len(entries) == pageRows {
		page.Next = entries[pageRows-1].Number
	}
	page.Actions, err = audit.ListActions(r.Context(), c.db.Load(), "", time.Time{}, pageRows)
	return page, err
}

func (c *Console) letter(r *http.Request) (any, error) {
	n, _ := strconv.ParseInt(r.PathValue("n"), 10, 64) // 0, which no message has, where it is none
	e, err := deadletter.Show(r.Context(), c.db.Load(), n)
	return letters{Entries: []deadletter.Entry{e}}, err
}
