package console

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// Lab really breaks things, one at a time. Only a demo has one.
type Lab interface {
	Actions() []Action
	// Do returns when the action has been taken, and says in a sentence what it did.
	Do(ctx context.Context, name string) (said string, err error)
}

// Action is a button of the crash lab.
type Action struct {
	Name  string // for Do
	Group string
	Title string
	What  string // a sentence: what it does
	Shows string // a sentence: what to watch
}

// taken is what an action did.
type taken struct {
	At          time.Time
	Title, Said string
	Bad         bool
	Took        time.Duration
}

const (
	mostTaken = 20
	mostTime  = 5 * time.Minute // of an action
)

// laboratory is the page of the crash lab.
type laboratory struct {
	Actions []Action
	Done    []taken
}

func (c *Console) lab(*http.Request) (any, error) {
	if c.Lab == nil {
		return laboratory{}, nil
	}
	c.taking.Lock()
	defer c.taking.Unlock()
	return laboratory{c.Lab.Actions(), slices.Clone(c.taken)}, nil
}

// act takes an action of the lab. A client that goes away does not leave it half done.
func (c *Console) act(w http.ResponseWriter, r *http.Request, _ string) (string, error) {
	if c.Lab == nil {
		return "", problem{http.StatusForbidden, "There is no crash lab here: it breaks things, and only payonce demo has one."}
	}
	name, actions := r.PostForm.Get("action"), c.Lab.Actions()
	i := slices.IndexFunc(actions, func(a Action) bool { return a.Name == name })
	if i < 0 {
		return "", problem{http.StatusNotFound, "There is no such action."}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), mostTime)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // where it cannot be set, the server's counts
	one := taken{At: c.Now(), Title: actions[i].Title}
	said, err := c.Lab.Do(ctx, name)
	if one.Said, one.Bad, one.Took = said, err != nil, c.Now().Sub(one.At); one.Bad {
		one.Said = err.Error()
	}
	c.taking.Lock()
	defer c.taking.Unlock()
	c.taken = slices.Insert(c.taken, 0, one)
	c.taken = c.taken[:min(len(c.taken), mostTaken)]
	c.live.hurry()
	return "/lab", nil
}
