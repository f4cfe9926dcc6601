package console

import (
	"net/http"
	"slices"
	"time"
)

// Action is a button of the crash lab. Only a demo has them.
type Action struct {
	Name  string // for Options.Do
	Group string
	Title string
	What  string // what it does
	Shows string // what to watch
}

// taken is what an action did.
type taken struct {
	At          time.Time
	Title, Said string
	Took        time.Duration
	Bad         bool
}

const mostTaken = 20 // actions on the page

// laboratory is the page of the lab.
type laboratory struct {
	Actions []Action
	Taken   []taken // newest first
}

// act takes an action of the lab, and returns when it has ended. A client that goes away does not leave it half done.
func (c *Console) act(r *http.Request) error {
	i := slices.IndexFunc(c.Actions, func(a Action) bool { return a.Name == r.PostFormValue("action") })
	switch {
	case i < 0:
		return problem{http.StatusNotFound, "There is no such action."}
	case !c.acting.TryLock():
		return problem{http.StatusConflict, "One action is taken at a time: wait until the last one has ended."}
	}
	defer c.acting.Unlock()
	t := taken{At: c.Now(), Title: c.Actions[i].Title}
	var err error
	if t.Said, err = c.Do(c.Actions[i].Name); err != nil {
		t.Said, t.Bad = err.Error(), true
	}
	t.Took = c.Now().Sub(t.At)
	before := c.labbed.Load().Taken
	c.labbed.Store(&laboratory{c.Actions, append([]taken{t}, before[:min(len(before), mostTaken-1)]...)})
	c.recent.Purge()
	return nil
}
