package demo

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// screen is all that the demo prints.
type screen struct {
	json   bool
	stdout io.Writer // the result
	stderr io.Writer // the way there
	now    func() time.Time
}

func newScreen(o Options) *screen {
	return &screen{json: o.JSON, stdout: o.Stdout, stderr: o.Stderr, now: o.Now}
}

// say prints a line. A stderr that nobody reads any more does not end the demo.
func (s *screen) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.stderr, format+"\n", args...)
}

func (s *screen) isTerminal() bool {
	file, ok := s.stderr.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// progress shows the tally while charges flow, until it is closed: a bar on a
// terminal, a line now and then elsewhere.
type progress struct {
	stop func()
	done chan struct{}
}

func (s *screen) progress(tally *tally, plan Plan) progress {
	show, pause, end := s.lines(tally, plan), 3*time.Second, func() {}
	if s.isTerminal() {
		show, pause, end = s.bar(tally, plan)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-stop:
				show()
				end()
				return
			}
		}
	}()
	return progress{stop: sync.OnceFunc(func() { close(stop) }), done: done}
}

// close returns when nothing more will be shown. It may be called again.
func (p progress) close() {
	p.stop()
	<-p.done
}

func (s *screen) bar(tally *tally, plan Plan) (show func(), pause time.Duration, end func()) {
	bar := progressbar.NewOptions(len(plan.Charges),
		progressbar.OptionSetWriter(s.stderr),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionUseANSICodes(true),
	)
	show = func() {
		bar.Describe(" charges ended; " + trouble(tally.strikes()))
		// What cannot be drawn is not worth an end of the demo.
		_ = bar.Set(int(tally.ended.Load()))
	}
	end = func() {
		_ = bar.Exit()
		s.say("")
	}
	return show, 200 * time.Millisecond, end
}

func (s *screen) lines(tally *tally, plan Plan) (show func()) {
	said := ""
	return func() {
		line := fmt.Sprintf("%d of %d charges ended; %s", tally.ended.Load(), len(plan.Charges), trouble(tally.strikes()))
		if line != said {
			s.say("%s", line)
		}
		said = line
	}
}

// trouble is what has been broken so far.
func trouble(done strikes) string {
	text := plural(done.workerKills, "worker") + " " + done.blow
	if done.apiKills > 0 {
		text += ", " + plural(done.apiKills, "api") + " " + done.blow
	}
	if done.restarted > 0 {
		text += ", database restarted"
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
