package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// Limits bound what callers can take of one process. What a number of processes
// allow is the sum. Zero is no limit.
type Limits struct {
	// PerSecond is how many requests of a merchant are taken in a second, replays
	// and refusals included, and after a pause as many at once.
	PerSecond int
	// InFlight is how many requests are worked on, most of which wait for a
	// connection to the database. One more is refused at once: a request that
	// waits until its time-out helps nobody.
	InFlight int
	// PerMerchant is how many of them are one merchant's.
	PerMerchant int
	// Authenticating is how many API keys that opened nothing yet are looked up at
	// a time, which is what somebody without a key can hold of the database. Those that
	// did share their look-ups, of which as many may stand still.
	Authenticating int
	// Auditing is how many audits are under way, and one of a merchant. Each holds a
	// connection for as long as it reads its merchant's tables.
	Auditing int
}

var (
	// errRate refuses a request of a merchant that has sent too many.
	errRate = errors.New("the merchant has sent too many requests")
	// errBusy refuses a request while too many others are in flight.
	errBusy = errors.New("too many requests are in flight")
)

// limits are Limits at work.
type limits struct {
	rates     rates
	known     knownKeys
	work      gate // by merchant
	unsigned  gate // events of the provider, or of anybody, that are being read
	strangers line // whose API keys opened nothing yet
	merchants gate // whose API keys did, by merchant
	audits    gate // by merchant
}

func newLimits(l Limits) *limits {
	return &limits{
		rates:     rates{perSecond: l.PerSecond, of: map[string]*rate.Limiter{}},
		known:     newKnownKeys(mostKnownKeys),
		work:      newGate(l.InFlight, l.PerMerchant),
		unsigned:  newGate(l.InFlight, 0),
		strangers: newLine(l.Authenticating, l.InFlight),
		merchants: newGate(l.InFlight, l.PerMerchant),
		audits:    newGate(l.Auditing, min(l.Auditing, 1)),
	}
}

// allows tells whether a merchant may send one more request now, and counts it.
func (a *API) allows(merchant string) bool {
	return a.limits.rates.perSecond <= 0 || a.limits.rates.allow(merchant, a.Now())
}

// limitWork refuses a request while too many others are worked on, or too many
// of its merchant. What is no use of the database by its merchant, health among
// it, always passes.
func (a *API) limitWork(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") {
			return next(c)
		}
		who := merchantOf(c).ID
		if isEvent(c) {
			who = stripePath // no merchant has this id
			if !a.limits.unsigned.enter(who) {
				c.Response().Header().Set("Connection", "close") // else the answer waits for the body
				return errBusy
			}
			readBody(c.Request())
			a.limits.unsigned.leave(who)
		} else {
			readBody(c.Request())
		}
		if !a.limits.work.enter(who) {
			return errBusy
		}
		defer a.limits.work.leave(who)
		return next(c)
	}
}

// readBody reads the body of a request to its end or to the size that it may
// have, so that whoever sends slowly takes nobody's place. An error is kept for
// the one who reads it next.
func readBody(r *http.Request) {
	if r.Method != http.MethodPost {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = io.EOF
	}
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// rates are the merchants' rates. They know as many merchants as there are: an
// unknown one was not let in.
type rates struct {
	perSecond int
	mu        sync.Mutex
	of        map[string]*rate.Limiter
}

func (r *rates) allow(merchant string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[merchant]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(r.perSecond), r.perSecond)
		r.of[merchant] = l
	}
	return l.AllowN(now, 1)
}

// gate lets in so many at a time, and of each so many.
type gate struct {
	most, share int // zero is no limit
	mu          sync.Mutex
	all         int
	in          map[string]int // nobody who is not in
}

func newGate(most, share int) gate { return gate{most: most, share: share, in: map[string]int{}} }

func (g *gate) enter(who string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.most > 0 && g.all >= g.most || g.share > 0 && g.in[who] >= g.share {
		return false
	}
	g.all++
	g.in[who]++
	return true
}

func (g *gate) leave(who string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.in[who]--; g.in[who] == 0 {
		delete(g.in, who)
	}
}

// line is a gate before few places. Nobody waits in a line that is too long.
type line struct {
	gate   gate          // who waits or has a place
	places chan struct{} // nil is no limit
}

func newLine(places, most int) line {
	var free chan struct{}
	if places > 0 {
		free = make(chan struct{}, places)
	}
	return line{gate: newGate(most, 0), places: free}
}

// wait returns when there is a place. Whoever has one calls done.
func (l *line) wait(ctx context.Context) (done func(), err error) {
	if l.places == nil {
		return func() {}, nil
	}
	if !l.gate.enter("") {
		return nil, errBusy
	}
	select {
	case l.places <- struct{}{}:
		return func() { <-l.places; l.gate.leave("") }, nil
	case <-ctx.Done():
		l.gate.leave("")
		return nil, ctx.Err()
	}
}
