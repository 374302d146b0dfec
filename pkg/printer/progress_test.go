package printer

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// screen is a terminal that knows the two sequences that Progress uses.
type screen struct {
	lines  []string
	writes int
}

func (s *screen) Write(b []byte) (int, error) {
	s.writes++
	text := string(b)
	for text != "" {
		var up int
		switch {
		case strings.HasPrefix(text, "\x1b["):
			if n, _ := fmt.Sscanf(text, "\x1b[%dA\r\x1b[J", &up); n == 1 {
				text = strings.TrimPrefix(text, fmt.Sprintf("\x1b[%dA\r\x1b[J", up))
				s.lines = s.lines[:len(s.lines)-up]
				continue
			}
			return 0, fmt.Errorf("unknown sequence %q", text)
		default:
			line, rest, found := strings.Cut(text, "\n")
			if !found {
				return 0, fmt.Errorf("line without end %q", text)
			}
			s.lines, text = append(s.lines, line), rest
		}
	}
	return len(b), nil
}

func (s *screen) String() string {
	var out string
	for _, l := range s.lines {
		out += strings.TrimRight(l, " ") + "\n"
	}
	return out
}

type fakeClock struct{ t time.Time }

func (c *fakeClock) now() time.Time { return c.t }

func (c *fakeClock) wait(d time.Duration) { c.t = c.t.Add(d) }

func newClock() *fakeClock { return &fakeClock{time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)} }

func restart(p *Progress, c *fakeClock) *Task {
	t := p.Start("restarting", "tenant-a", "db-1")
	t.Phase("stopping", "old pod virt-launcher-db-1-x7k2p on n1")
	c.wait(2 * time.Second)
	t.Phase("stopping", "old pod virt-launcher-db-1-x7k2p on n1")
	c.wait(2 * time.Second)
	t.Phase("starting", "pod not there yet")
	c.wait(3 * time.Second)
	t.Phase("starting", "new pod virt-launcher-db-1-9qwzt\x1b[2J on n2")
	return t
}

func TestProgressOnATerminal(t *testing.T) {
	var s screen
	c := newClock()
	p := &Progress{w: &s, now: c.now, size: func() (int, int) { return 80, 24 }}
	db := restart(p, c)
	web := p.Start("migrating", "tenant-a", "web")
	web.Heading("n2 -> n3")
	fmt.Fprint(p, "Warning: half a li")
	fmt.Fprint(p, "ne\n")
	c.wait(4 * time.Second)
	p.draw()
	want := `Warning: half a line
restarting virtualmachine tenant-a/db-1
  stopping    old pod virt-launcher-db-1-x7k2p on n1          4s
  starting    new pod virt-launcher-db-1-9qwzt^[[2J on n2    11s
migrating virtualmachine tenant-a/web n2 -> n3
`
	if s.String() != want {
		t.Errorf("screen shows\n%s\nwant\n%s", &s, want)
	}
	web.Phase("target", "virt-launcher-web-4mnbc on n3, address 198.51.100.21 as reserved, and much more text")
	db.Phase("verified", "pod 198.51.100.20 = reservation, guest 198.51.100.20")
	c.wait(time.Second)
	db.Done()
	db.Done()
	c.wait(time.Second)
	p.Close()
	want = `Warning: half a line
restarting virtualmachine tenant-a/db-1
  stopping    old pod virt-launcher-db-1-x7k2p on n1                   4s
  starting    new pod virt-launcher-db-1-9qwzt^[[2J on n2             11s
  verified    pod 198.51.100.20 = reservation, guest 198.51.100.20    12s
migrating virtualmachine tenant-a/web n2 -> n3
  target      virt-launcher-web-4mnbc on n3, address 198.51.100.21 as...     6s
`
	if s.String() != want {
		t.Errorf("screen shows\n%s\nwant\n%s", &s, want)
	}
}

// A block higher than the terminal could not be rewritten.
func TestProgressInASmallTerminal(t *testing.T) {
	var s screen
	c := newClock()
	p := &Progress{w: &s, now: c.now, size: func() (int, int) { return 30, 4 }}
	for i := range 5 {
		p.Start("restarting", "a", fmt.Sprintf("vm-%d", i))
	}
	p.draw()
	p.Close()
	want := "restarting virtualmachine ...\nrestarting virtualmachine ...\n... and 3 lines more\n"
	if s.String() != want {
		t.Errorf("screen shows\n%s\nwant\n%s", &s, want)
	}
}

func TestProgressElsewhere(t *testing.T) {
	var out, events bytes.Buffer
	c := newClock()
	p := NewProgress(&out, &events)
	p.now = c.now
	db := restart(p, c)
	db.Heading("n1 -> n2")
	db.Done()
	fmt.Fprint(p, "Warning: x\n")
	p.Close()
	want := `restarting virtualmachine tenant-a/db-1
tenant-a/db-1 stopping: old pod virt-launcher-db-1-x7k2p on n1 (0s)
tenant-a/db-1 starting: pod not there yet (4s)
tenant-a/db-1 starting: new pod virt-launcher-db-1-9qwzt^[[2J on n2 (7s)
Warning: x
`
	if out.String() != want {
		t.Errorf("wrote\n%s\nwant\n%s", &out, want)
	}
	first, _, _ := strings.Cut(events.String(), "\n")
	const event = `{"kind":"OperationEvent","apiVersion":"vmip.io/v1alpha1","object":"virtualmachine.kubevirt.io/db-1","namespace":"tenant-a","phase":"stopping","message":"old pod virt-launcher-db-1-x7k2p on n1","time":"2026-12-01T10:00:00Z","elapsed":"0s"}`
	if first != event || strings.Count(events.String(), "\n") != 3 {
		t.Errorf("events are\n%s\nwant 3, the first\n%s", &events, event)
	}
}

// Meant for the race detector.
func TestProgressFromManyGoroutines(t *testing.T) {
	for _, size := range []func() (int, int){nil, func() (int, int) { return 80, 24 }} {
		p := &Progress{w: io.Discard, now: time.Now, size: size}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				task := p.Start("restarting", "a", fmt.Sprint(i))
				task.Phase("stopping", "x")
				fmt.Fprintln(p, "text")
				task.Phase("starting", "y")
				task.Done()
			})
		}
		wg.Wait()
		p.Close()
	}
}
