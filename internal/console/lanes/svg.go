package lanes

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

// Style is the text of the style element of every drawing. A page whose policy allows no inline
// styles allows its hash.
const Style = `.lanes{--ink:#1b1f24;--soft:#57606a;--paper:#fff;--band:#f4f6f8;--rule:#c9d1d9;--blue:#0b57b4;--blue-fill:#e3f1ff;--green:#116329;--green-fill:#dff5e3;--red:#b3101b;--red-fill:#ffe9e8;--dark:#30363d;--live:#2da44e;font:12px system-ui,sans-serif;min-width:56rem;max-width:100rem;background:var(--paper)}.lanes.wide{min-width:120rem;max-width:none}
.lanes text{fill:var(--ink)}.lanes .soft{fill:var(--soft);font-size:11px}.lanes .name{font-weight:600}.lanes .head{font-size:14px;font-weight:600}.lanes .middle{text-anchor:middle}.lanes .end{text-anchor:end}
.lanes .band{fill:var(--band)}.lanes .life{stroke:var(--rule);stroke-dasharray:3 4}.lanes .arrow{stroke:var(--soft);fill:none;stroke-width:1.3}.lanes .tip{fill:var(--soft)}
.lanes .box rect{fill:var(--paper);stroke:var(--soft)}.lanes .event rect{fill:var(--blue-fill);stroke:var(--blue)}.lanes .key rect{stroke:var(--blue)}.lanes .call rect,.lanes .held rect{fill:var(--green-fill);stroke:var(--green)}
.lanes .claim rect,.lanes .lease{fill:var(--green-fill);stroke:var(--green)}.lanes .bad rect{fill:var(--red-fill);stroke:var(--red)}.lanes .message rect{stroke-dasharray:4 2}
.lanes .takeover rect{fill:var(--green-fill);stroke:var(--green);stroke-width:2.5}.lanes .takeover .arrow{stroke:var(--live);stroke-width:3}.lanes .takeover .tip{fill:var(--live)}
.lanes .night{fill:var(--dark)}.lanes .dark rect{fill:var(--dark);stroke:var(--red);stroke-width:2}.lanes .dark rect~text{fill:#fff}
.lanes .dropped rect{fill:var(--red-fill);stroke:var(--red)}.lanes .strike{stroke:var(--red);stroke-width:2}.lanes .dropped .gone{text-decoration:line-through}.lanes .dropped .guard{fill:var(--red);font-weight:600}
.lanes .gap rect{fill:var(--paper)}.lanes .gap path{stroke:var(--soft);fill:none}.lanes .gap text{font-style:italic}
@media (prefers-color-scheme:dark){.lanes{--ink:#e6edf3;--soft:#9aa4af;--paper:#0d1117;--band:#161b22;--rule:#3d444d;--blue:#6cb6ff;--blue-fill:#10294a;--green:#57d27a;--green-fill:#0f3320;--red:#ff9189;--red-fill:#471a1c;--dark:#000}.lanes .night{stroke:var(--rule)}}`

const (
	gutter    = 92 // for the times
	boxMargin = 8
	oneLine   = 22
	twoLines  = 36
	between   = 8  // rows
	torn      = 30 // where time is left out
	longGap   = time.Second
	longText  = 16_000 // what is shown when pointed at
)

// write lays the drawing out, and writes it from back to front.
func (d *drawing) write(out *bufio.Writer) {
	width := gutter
	for _, l := range d.lanes {
		l.x, width = width+l.width/2, width+l.width
	}
	top := 64 + 16*min(len(d.timeline.Charges), 3)
	gaps, bottom := d.place(top)
	height := bottom + 76
	p := func(format string, args ...any) { fmt.Fprintf(out, format, args...) } // Flush returns its error
	class := "lanes"
	if width > 1600 {
		class += " wide" // many workers
	}
	p(`<svg xmlns="http://www.w3.org/2000/svg" class="%s" role="img" viewBox="0 0 %d %d"><title>%s</title><desc>%s</desc><style>%s</style>`,
		class, width, height, shown(d.headline(), longText), shown(d.summary(), longText), Style)
	for i, c := range d.timeline.Charges[:min(len(d.timeline.Charges), 3)] {
		p(`<text class="head" x="8" y="%d">%s</text>`, 20+16*i, shown(chargeLine(c), width-100))
	}
	p(`<text class="soft" x="8" y="%d">%s</text>`, top-34, shown(d.summary(), longText))
	for i, l := range d.lanes {
		if i%2 == 0 {
			p(`<rect class="band" x="%d" y="%d" width="%d" height="%d"/>`, l.x-l.width/2, top-26, l.width, bottom-top+46)
		}
		p(`<g class="lane"><text class="name middle" x="%d" y="%d">%s</text><text class="soft middle" x="%d" y="%d">%s</text><path class="life" d="M%d %dV%d"/><text class="name middle" x="%[1]d" y="%[10]d">%[3]s</text></g>`,
			l.x, top-12, l.name, l.x, top+2, shown(cmp.Or(l.holder, l.about), l.width), l.x, top+8, bottom, bottom+14)
	}
	d.writeClaims(p, bottom)
	for i, r := range d.rows {
		if r.y > 0 {
			d.writeRow(p, r, i > 0 && r.at.Equal(d.rows[i-1].at))
		}
	}
	for _, g := range gaps {
		p(`<g class="gap"><rect x="0" y="%d" width="%d" height="16"/><path d="%s"/><path d="%s"/><text class="soft middle" x="%d" y="%d">%s</text></g>`,
			g.y, width, zigzag(g.y, width), zigzag(g.y+16, width), width/2, g.y+12, g.text)
	}
	d.writeLegend(p, bottom+34)
	p("</svg>\n")
}

// gap is a tear in the drawing: rows, or a long time, are left out.
type gap struct {
	y    int
	text string
}

// place gives each row its height. Short times stretch the distance of two rows by their
// logarithm, long ones are torn out.
func (d *drawing) place(top int) (gaps []gap, bottom int) {
	y := top + 16
	for i, r := range d.rows {
		r.height = oneLine
		if r.note != "" {
			r.height = twoLines
		}
		if left := len(d.rows) - maxRows; left > 0 && i >= maxRows/2 && i < maxRows/2+left {
			if i == maxRows/2 {
				gaps, y = append(gaps, gap{y, counted(left, "row") + " left out"}), y+torn
			}
			continue
		}
		if i > 0 {
			passed := r.at.Sub(d.rows[i-1].at)
			if passed >= longGap {
				gaps, y = append(gaps, gap{y, span(passed) + " later"}), y+torn
			} else if passed > 0 {
				y += int(3 * math.Log2(1+10*float64(passed)/float64(time.Millisecond)))
			}
		}
		r.y = y
		y += r.height + between
	}
	return gaps, y + 8
}

// writeClaims draws the leases, and the swim lanes that are dark. A swim lane is dark until its worker
// claims again.
func (d *drawing) writeClaims(p func(string, ...any), bottom int) {
	busy := map[*lane][]int{} // where the last bar beside each other ends
	for _, c := range d.claims {
		l, from, to := d.worker(c.holder), c.first.y, c.last.y
		if from == 0 || to == 0 {
			continue // it is in the rows that are left out
		}
		from, to, slot := min(from, to), max(from, to), 0
		for slot < len(busy[l]) && busy[l][slot] > from {
			slot++
		}
		if slot == len(busy[l]) {
			busy[l] = append(busy[l], 0)
		}
		busy[l][slot] = to + c.last.height
		p(`<rect class="lease" x="%d" y="%d" width="8" height="%d"><title>%s</title></rect>`,
			l.x-l.width/2+4+9*slot, from, busy[l][slot]-from, shown(fmt.Sprintf("claim %d of message %s by %s", c.fence, c.message, c.holder), longText))
		if !c.lost {
			continue
		}
		night := bottom
		for _, next := range d.claims {
			if next.holder == c.holder && next.first.y > to {
				night = min(night, next.first.y)
			}
		}
		p(`<rect class="night" x="%d" y="%d" width="%d" height="%d"/>`, l.x-l.width/2+boxMargin, to, l.width-2*boxMargin, night-to)
	}
}

// writeRow draws the time, unless it is that of the row before, the arrow and the box.
func (d *drawing) writeRow(p func(string, ...any), r *row, sameTime bool) {
	class, half, middle := r.class, r.lane.width/2-boxMargin, r.y+r.height/2
	if r.dropped {
		class += " dropped"
	}
	p(`<g class="row box %s"><title>%s</title>`, class, shown(r.title, longText))
	if !sameTime {
		p(`<text class="soft end" x="%d" y="%d">%s</text>`, gutter-6, middle+4, since(r.at.Sub(d.rows[0].at)))
	}
	if r.from != nil {
		start, end, tip := r.from.x, r.lane.x-half, -7
		if r.from.x > r.lane.x {
			end, tip = r.lane.x+half, 7
		}
		p(`<circle class="tip" cx="%d" cy="%d" r="2.5"/><path class="arrow" d="M%[1]d %[2]dH%[3]d"/><path class="tip" d="M%[4]d %[2]dl%[5]d -4v8z"/>`, start, middle, end+tip, end, tip)
	}
	p(`<rect x="%d" y="%d" width="%d" height="%d" rx="4"/>`, r.lane.x-half, r.y, 2*half, r.height)
	line, first, second := r.y+15, "middle", "soft middle"
	if r.dropped {
		first, second = "gone middle", "guard middle"
	}
	p(`<text class="%s" x="%d" y="%d">%s</text>`, first, r.lane.x, line, shown(r.text, half*11/6))
	if r.note != "" {
		p(`<text class="%s" x="%d" y="%d">%s</text>`, second, r.lane.x, line+15, shown(r.note, 2*half))
	}
	if r.dropped {
		p(`<path class="strike" d="M%d %dh24m-6 -6l12 12m0 -12l-12 12"/>`, r.lane.x+half, middle)
	}
	p(`</g>`)
}

func (d *drawing) writeLegend(p func(string, ...any), y int) {
	for i, l := range []struct{ class, text string }{
		{"event", "event, with its version"},
		{"message", "message, or the end of one"},
		{"claim", "a worker holds a message by a lease"},
		{"dark", "silent: its late commits are refused"},
		{"dropped", "duplicate, dropped by this constraint"},
		{"bad", "failed or refused"},
	} {
		x, y := 8+i%3*270, y+i/3*20
		p(`<g class="box %s"><rect x="%d" y="%d" width="14" height="14" rx="3"/></g><text class="soft" x="%d" y="%d">%s</text>`, l.class, x, y, x+20, y+11, l.text)
	}
}

// zigzag is the path of a torn edge.
func zigzag(y, width int) string {
	return fmt.Sprintf("M0 %d", y) + strings.Repeat("l6 -3l6 3", width/12)
}

// shown is s as the text of an element: cut to about a width in pixels, and without what has no
// glyph or changes the direction of the text.
func shown(s string, width int) string {
	var kept, escaped strings.Builder
	used := 0
	for _, r := range s {
		if !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		switch {
		case r >= 0x1100 || r == 'W' || r == 'M':
			used += 14
		case unicode.IsUpper(r) || strings.ContainsRune("mw_", r):
			used += 9
		case strings.ContainsRune(" ijlft.,:;'()", r):
			used += 5
		default:
			used += 7
		}
		if used > width {
			kept.WriteRune('…')
			break
		}
		kept.WriteRune(r)
	}
	_ = xml.EscapeText(&escaped, []byte(kept.String())) // a Builder has no error
	return escaped.String()
}
