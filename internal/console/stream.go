package console

import (
	"bytes"
	"fmt"
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
	defer c.open()()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	page, charge := r.URL.Query().Get("page"), r.URL.Query().Get("charge")
	after := int(number(r.URL.Query().Get("after"))) // the last that the page shows
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	part := func(name string, text []byte) {
		// A carriage return would end the line, and begin another field.
		lines := bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r"), []byte(" ")), []byte("\n"), []byte("\ndata: "))
		_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, lines) // Flush has the error
	}
	for {
		_ = control.SetWriteDeadline(c.Now().Add(sendTimeout)) // where it cannot be set, the server's counts
		t := c.newest.Load()
		part("strip", t.strip)
		switch page {
		case "Flow":
			part("live", t.flow)
		case "Charge", "Crash lab":
			part("progress", c.render(page, "progress", map[string]any{"Tick": t, "Lab": c.labbed.Load(), "Charge": charge, "After": after}))
		}
		if control.Flush() != nil {
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
