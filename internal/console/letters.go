package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/doorbell"
)

const (
	longestReason = 500 // characters
	mostActions   = 20
)

// letters are the page of dead letters, with what operators did lately, or of one message,
// whatever its status is.
type letters struct {
	Status  inbox.Status // of the list
	Entries []inbox.Entry
	Next    int64 // the message before the next page; 0 if there is none
	Actions []audit.Action
}

func (c *Console) letters(r *http.Request) (any, error) {
	page := letters{Status: inbox.StatusDead}
	if r.URL.Query().Get("status") == string(inbox.StatusDiscarded) {
		page.Status = inbox.StatusDiscarded
	}
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // 0: from the first
	var err error
	if page.Entries, err = inbox.List(r.Context(), c.db.Load(), page.Status, after, pageRows); err != nil {
		return nil, err
	}
	if len(page.Entries) == pageRows {
		page.Next = page.Entries[pageRows-1].Number
	}
	page.Actions, err = audit.ListActions(r.Context(), c.db.Load(), "", time.Time{}, mostActions)
	return page, err
}

func (c *Console) letter(r *http.Request) (any, error) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil {
		return nil, inbox.ErrNoMessage
	}
	e, err := inbox.Show(r.Context(), c.db.Load(), n)
	return letters{Entries: []inbox.Entry{e}}, err
}

const setReason = `
select set_config('payonce.reason', $1, true)`

// decide stores a decision with its operator and reason, and shows the message.
//
// If we die here: the decision is stored with both, or not at all. Test: TestDeadLetters.
func (c *Console) decide(_ http.ResponseWriter, r *http.Request, actor string) (string, error) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	decision, reason := inbox.Retry, strings.TrimSpace(r.PostForm.Get("reason"))
	switch {
	case err != nil:
		return "", inbox.ErrNoMessage
	case r.PathValue("what") == "discard":
		if decision = inbox.Discard; reason == "" || len([]rune(reason)) > longestReason {
			return "", problem{http.StatusUnprocessableEntity, "Give a reason of at most 500 characters: the audit log keeps it."}
		}
	case r.PathValue("what") != "retry":
		return "", errNoPage
	}
	ctx := r.Context()
	err = pgx.BeginFunc(ctx, c.db.Load().Pool(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setReason, reason); err != nil {
			return err
		}
		return decision(ctx, tx, n, actor)
	})
	if err != nil {
		return "", err
	}
	c.bell.Ring(doorbell.Inbox)
	c.live.hurry()
	return "/dead-letters/" + r.PathValue("n"), nil
}
