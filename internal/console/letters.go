package console

import (
	"net/http"
	"strconv"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
)

// letters are the page of dead letters, with what operators did lately, or of one message,
// whatever its status is.
type letters struct {
	List    bool
	Entries []inbox.Entry
	Next    int64 // the message before the next page; 0 if there is none
	Actions []audit.Action
}

func (c *Console) letters(r *http.Request) (any, error) {
	entries, err := inbox.List(r.Context(), c.db.Load(), inbox.Filter{Status: inbox.StatusDead}, messageNumber(r.URL.Query().Get("after")), pageRows)
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
	e, err := inbox.Show(r.Context(), c.db.Load(), messageNumber(r.PathValue("n")))
	return letters{Entries: []inbox.Entry{e}}, err
}

// messageNumber is 0, which no message has, for a text that is none.
func messageNumber(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // 0, or the number next to one that is too large
	return n
}
