package console

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	heartbeat   = 15 * time.Second
	sendTimeout = 10 * time.Second
	streamTime  = 10 * time.Minute // after which the browser connects again
)

// progress is what a tick has of one charge, since its page was read.
type progress struct {
	Events []event // oldest first
	Leases []lease
}

// flow is the first state of the Flow page.
func (c *Console) flow(r *http.Request) (any, error) {
	if t := c.live.current(r.Context()); t != nil {
		return t, nil
	}
	return nil, errNoDatabase
}

// stream sends the parts of a page that change, as Server-Sent Events, until the browser leaves
// or the operator's session ends. It reads nothing from the database.
func (c *Console) stream(w http.ResponseWriter, r *http.Request) {
	if _, err := c.operator(r); err != nil {
		c.show(w, r, "", nil, err)
		return
	}
	select {
	case c.streams <- struct{}{}:
		defer func() { <-c.streams }()
	default:
		http.Error(w, "Too many pages are open.", http.StatusServiceUnavailable)
		return
	}
	ticks, leave := c.live.open()
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	page, charge := r.URL.Query().Get("page"), r.URL.Query().Get("charge")
	after, _ := strconv.Atoi(r.URL.Query().Get("after")) // the version that the page shows; 0: none
	sent := map[string][]byte{}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	end := time.NewTimer(streamTime)
	defer end.Stop()
	for {
		var b bytes.Buffer
		part := func(name string, text []byte) {
			if bytes.Equal(sent[name], text) {
				return
			}
			sent[name] = text
			b.WriteString("event: " + name + "\n")
			for line := range bytes.Lines(text) {
				// A carriage return would end the line, and begin another field.
				b.WriteString("data: " + string(bytes.ReplaceAll(bytes.TrimRight(line, "\r\n"), []byte{'\r'}, []byte{' '})) + "\n")
			}
			b.WriteString("\n")
		}
		select {
		case <-r.Context().Done():
			return
		case <-end.C:
			return
		case <-c.closing:
			return
		case <-beat.C:
			if _, err := c.session(r, false); err != nil {
				return
			}
			b.WriteString(": still here\n\n")
		case t := <-ticks:
			part("strip", t.strip)
			if page == "flow" {
				part("live", t.flow)
			}
			if charge != "" {
				part("progress", c.live.render("progress", progressOf(t, charge, after)))
			}
		}
		_ = control.SetWriteDeadline(c.Now().Add(sendTimeout)) // where it cannot be set, the server's counts
		if _, err := w.Write(b.Bytes()); err != nil || control.Flush() != nil {
			return
		}
	}
}

func progressOf(t *tick, charge string, after int) (p progress) {
	for _, e := range slices.Backward(t.Events) {
		if e.StreamID == charge && e.Version > after {
			p.Events = append(p.Events, e)
		}
	}
	for _, l := range t.Leases {
		if l.OrderingKey == charge {
			p.Leases = append(p.Leases, l)
		}
	}
	return p
}
