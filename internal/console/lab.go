package console

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Lab really breaks things. Only a demo has one.
type Lab interface {
	Actions() []Action
	// Do returns when the action has been taken, and says in a sentence what it did.
	Do(ctx context.Context, name string) (said string, err error)
}

// Action is a button of the crash lab.
type Action struct {
	Name  string // for Do, and for the form
	Group string // actions of a group are shown together
	Title string // of the button
	What  string // a sentence: what it does
	Shows string // a sentence: what to watch
}

// taken is what an action did.
type taken struct {
	At    time.Time
	Title string
	Said  string
	Bad   bool
	Took  time.Duration
}

// laboratory takes one action at a time and remembers the last ones.
type laboratory struct {
	busy sync.Mutex // while an action is taken
	mu   sync.Mutex
	done []taken // newest first
}

// experiments is the page of the crash lab.
type experiments struct {
	There  bool
	Groups []group
	Done   []taken
	Token  string
}

type group struct {
	Name    string
	Actions []Action
}

const mostTaken = 20

func (c *Console) lab(r *http.Request) (any, error) {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	page := experiments{There: c.Lab != nil, Token: c.token(v.id)}
	if c.Lab == nil {
		return page, nil
	}
	for _, a := range c.Lab.Actions() {
		i := slices.IndexFunc(page.Groups, func(g group) bool { return g.Name == a.Group })
		if i < 0 {
			i, page.Groups = len(page.Groups), append(page.Groups, group{Name: a.Group})
		}
		page.Groups[i].Actions = append(page.Groups[i].Actions, a)
	}
	c.laboratory.mu.Lock()
	defer c.laboratory.mu.Unlock()
	page.Done = slices.Clone(c.laboratory.done)
	return page, nil
}

var errNoLab = problem{http.StatusForbidden, "There is no crash lab here: it breaks things, and only payonce demo has one."}

// act takes an action of the lab, one at a time.
func (c *Console) act(w http.ResponseWriter, r *http.Request, _ visitor) (string, error) {
	if _, err := c.operator(r); err != nil {
		return "", err
	}
	if c.Lab == nil {
		return "", errNoLab
	}
	name := r.PostForm.Get("action")
	actions := c.Lab.Actions()
	i := slices.IndexFunc(actions, func(a Action) bool { return a.Name == name })
	if i < 0 {
		return "", problem{http.StatusNotFound, "There is no such action."}
	}
	// A client that goes away does not leave the action half done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Minute)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	if !c.laboratory.busy.TryLock() {
		return "", problem{http.StatusConflict, "Another action is running. Wait for its end."}
	}
	defer c.laboratory.busy.Unlock()
	began := c.Now()
	said, err := c.Lab.Do(ctx, name)
	one := taken{At: began, Title: actions[i].Title, Said: said, Took: c.Now().Sub(began)}
	if err != nil {
		one.Said, one.Bad = err.Error(), true
	}
	c.laboratory.mu.Lock()
	defer c.laboratory.mu.Unlock()
	c.laboratory.done = slices.Insert(c.laboratory.done, 0, one)
	c.laboratory.done = c.laboratory.done[:min(len(c.laboratory.done), mostTaken)]
	c.live.hurry()
	return "/lab", nil
}
