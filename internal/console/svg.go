package console

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/bojanz/currency"

	"github.com/payonce/payonce/internal/audit"
)

var (
	//go:embed assets/lanes.svg
	drawingText string
	// Style is the text of the style element of every drawing. A page whose policy allows no
	// inline styles allows its hash.
	//go:embed assets/lanes.css
	Style string
)

const (
	maxRows = 400

	gutter   = 92 // for the times
	oneLine  = 22
	twoLines = 36
	between  = 8  // rows
	torn     = 30 // where time is left out
	longGap  = time.Second
)

// Draw draws the timeline of a charge as an SVG: lanes for the client, the api, the database, each
// worker, the provider and the merchant, with time downwards. The drawing has no script, no font, no
// link and no style attribute. It may stand in a page that allows the hash of Style, more than once,
// since it has no ids. It is an image to a screen reader: the page has the entries beside it as text.
//
// What was stored by others is shortened and escaped. The same timeline
// gives the same bytes. Of more than 400 rows the first and the last 200 are drawn.
func Draw(t audit.Timeline) (template.HTML, error) {
	drawing := template.Must(template.New("").Funcs(template.FuncMap{
		"fit": fit, "add": func(a, b int) int { return a + b }, "mul": func(a, b int) int { return a * b },
		"style": func() template.CSS { return template.CSS(Style) }, //nolint:gosec // it is ours
	}).Parse(drawingText))
	d := newDrawing(t)
	d.place()
	d.drawClaims()
	var text strings.Builder
	err := drawing.Execute(&text, d)
	return template.HTML(text.String()), err //nolint:gosec // as above
}

// place gives each swim lane and row its place. Short times stretch the distance of two rows by their
// logarithm, long ones are torn out.
func (d *drawing) place() {
	d.Width = gutter
	for _, l := range d.Lanes {
		l.Left, l.X, d.Width = d.Width, d.Width+l.Width/2, d.Width+l.Width
	}
	d.Top = 64 + 16*len(d.Heads)
	y, rows := d.Top+16, d.Rows
	if left := len(rows) - maxRows; left > 0 {
		rows = slices.Delete(slices.Clone(rows), maxRows/2, maxRows/2+left)
		rows[maxRows/2].Torn = plural(left, "row") + " left out"
	}
	for i, r := range rows {
		passed := r.at.Sub(rows[max(i-1, 0)].at)
		if i == 0 || passed > 0 {
			r.Since = "+" + r.at.Sub(rows[0].at).Round(100*time.Microsecond).String()
		}
		if passed >= longGap && r.Torn == "" {
			r.Torn = span(passed) + " later"
		}
		if r.Torn != "" {
			y += torn
		} else {
			y += int(3 * math.Log2(1+10*float64(passed)/float64(time.Millisecond)))
		}
		r.Y, r.Height = y, oneLine
		if r.Note != "" {
			r.Height = twoLines
		}
		r.Left, r.Width, r.Middle = r.Lane.Left+8, r.Lane.Width-16, y+r.Height/2
		r.Reach, r.Tip = r.Left, -7
		if r.From != nil && r.From.X > r.Lane.X {
			r.Reach, r.Tip = r.Left+r.Width, 7
		}
		y += r.Height + between
	}
	d.Bottom = y + 8
}

// drawClaims draws the leases, those of each receiver beside the others'. A swim lane is dark from a
// lease that ended until its worker claims again.
func (d *drawing) drawClaims() {
	var receivers []string
	for _, c := range d.claims {
		if c.first.Y == 0 || c.last.Y == 0 {
			continue // it is in the rows that are left out
		}
		if !slices.Contains(receivers, c.receiver) {
			receivers = append(receivers, c.receiver)
		}
		l, from, to := d.worker(c.holder), min(c.first.Y, c.last.Y), max(c.first.Y, c.last.Y)
		x := l.Left + 4 + 9*slices.Index(receivers, c.receiver)
		d.Bars = append(d.Bars, bar{"lease", x, from, 8, to + c.last.Height - from, fmt.Sprintf("claim %d of message %s by %s", c.fence, c.message, c.holder)})
		if !c.lost {
			continue
		}
		end := d.Bottom
		for _, next := range d.claims {
			if next.holder == c.holder && next.first.Y > to {
				end = min(end, next.first.Y)
			}
		}
		d.Bars = append(d.Bars, bar{"night", l.Left + 8, to, l.Width - 16, end - to, "no sign of " + c.holder})
	}
}

// fit cuts a text to about a width in pixels, and replaces what has no glyph or changes the
// direction of the text.
func fit(s string, width int) string {
	var kept strings.Builder
	for _, r := range s {
		if !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		switch width -= 7; {
		case r >= 0x1100:
			width -= 7
		case unicode.IsUpper(r):
			width -= 2
		}
		if width < 0 {
			return kept.String() + "…"
		}
		kept.WriteRune(r)
	}
	return kept.String()
}

// span is the text of a duration, in three digits or to a second.
func span(d time.Duration) string {
	unit := time.Nanosecond
	for unit < time.Second && d.Abs()/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// money shows an amount, which is in minor units, in units of its currency.
func money(amount int64, code string) string {
	exact, err := currency.NewAmountFromInt64(amount, code)
	if err != nil {
		return fmt.Sprintf("%d %s", amount, code)
	}
	formatter := currency.NewFormatter(currency.NewLocale("en"))
	formatter.CurrencyDisplay = currency.DisplayNone
	return formatter.Format(exact) + " " + code
}

// plural counts in words.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
