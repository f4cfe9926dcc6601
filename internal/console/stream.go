package console

import (
	"bytes"
	"net/http"
	"time"
)

const (
	heartbeat   = 15 * time.Second
	sendTimeout = 10 * time.Second
)

// stream sends the parts of a page that change, as Server-Sent Events, until the browser leaves
// or the operator's session ends. It reads nothing from the database.
func (c *Console) stream(w http.ResponseWriter, r *http.Request) {
	if _, err := c.operator(r); err != nil {
		c.show(w, r, "", nil, err)
		return
	}
	defer c.live.open()()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	page, charge := r.URL.Query().Get("page"), r.URL.Query().Get("charge")
	after := int(number(r.URL.Query().Get("after"))) // the last that the page shows
	sent := map[string][]byte{}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		b := bytes.NewBufferString(":\n") // a comment, so that a browser that has gone is noticed
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
		t := c.live.newest.Load()
		part("strip", t.strip)
		if page == "flow" {
			part("live", t.flow)
		}
		if page == "charge" || page == "lab" {
			part("progress", c.render("progress", map[string]any{"Tick": t, "Lab": c.laboratory(), "Charge": charge, "After": after}))
		}
		_ = control.SetWriteDeadline(c.Now().Add(sendTimeout)) // where it cannot be set, the server's counts
		if _, err := w.Write(b.Bytes()); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-t.over:
		case <-beat.C:
			if _, err := c.operator(r); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-c.closing:
			return
		}
	}
}
