package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/moby/term"
	"k8s.io/apimachinery/pkg/util/duration"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

// Progress shows how long operations on virtual machines stand. On a terminal it rewrites a
// status block, elsewhere it writes one line a change. All its methods may be called from several
// goroutines. It is an io.Writer too: what else goes to the same stream has to go through it, or
// would be overwritten.
type Progress struct {
	w io.Writer
	// events gets an OperationEvent a line for each change, with -o json.
	events io.Writer
	now    func() time.Time
	// size is the width and height of the terminal; nil where the stream is none.
	size func() (width, height int)

	mu      sync.Mutex
	tasks   []*Task
	bar     *Bar
	drawn   int
	partial []byte
	stop    chan struct{}
}

// NewProgress returns a progress on w, standard error as a rule. events may be nil.
func NewProgress(w, events io.Writer) *Progress {
	p := &Progress{w: w, events: events, now: time.Now}
	// Events on the same terminal would tear the block.
	if fd, terminal := term.GetFdInfo(w); terminal && events == nil && rewrites() {
		p.size = func() (int, int) {
			if s, err := term.GetWinsize(fd); err == nil && s.Width > 0 && s.Height > 0 {
				return int(s.Width), int(s.Height)
			}
			return 80, 24
		}
	}
	return p
}

// rewrites says whether terminals here understand cursor movements.
func rewrites() bool {
	return os.Getenv("TERM") != "dumb" && (runtime.GOOS != "windows" || os.Getenv("WT_SESSION") != "")
}

// Task is one operation on one virtual machine.
type Task struct {
	p               *Progress
	namespace, name string
	heading         string
	started         time.Time
	steps           []step
}

type step struct {
	phase, text string
	// elapsed since the start of the task when the step ended; negative while it runs.
	elapsed time.Duration
}

// Start begins a task: verb is "restarting", "migrating".
func (p *Progress) Start(verb, namespace, name string) *Task {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &Task{p: p, namespace: namespace, name: name, heading: Escape(fmt.Sprintf("%s virtualmachine %s/%s", verb, namespace, name)), started: p.now()}
	p.tasks = append(p.tasks, t)
	if p.size == nil {
		fmt.Fprintln(p.w, t.heading)
		return t
	}
	if p.stop == nil {
		p.stop = make(chan struct{})
		go p.tick(p.stop)
	}
	p.draw()
	return t
}

// Bar shows how many of many are done: one line below everything else. Where the stream is no
// terminal it shows nothing, since each outcome has a line of its own.
type Bar struct {
	p           *Progress
	label       string
	done, total int
	drawn       time.Time
}

// Bar begins to count; a second one takes the place of the first.
func (p *Progress) Bar(label string, total int) *Bar {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar = &Bar{p: p, label: Escape(label), total: total, drawn: p.now()}
	p.draw()
	return p.bar
}

// Add counts one more.
func (b *Bar) Add() {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.done++
	// Often enough for the eye; more would cost more than the work.
	if now := b.p.now(); now.Sub(b.drawn) > 50*time.Millisecond || b.done == b.total {
		b.drawn = now
		b.p.draw()
	}
}

func (b *Bar) line(width int) string {
	text := fmt.Sprintf("%s %d/%d ", b.label, b.done, b.total)
	room := min(40, width-len([]rune(text))-3)
	if room < 5 || b.total < 1 {
		return text
	}
	full := room * b.done / b.total
	return text + "[" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "]"
}

// Heading adds to the first line of the task what became known later ("n2 -> n3").
func (t *Task) Heading(more string) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.heading += " " + Escape(more)
	t.p.draw()
}

// Phase says where the task stands and what it waits for. Another text for the same phase
// replaces the last one.
func (t *Task) Phase(phase, text string) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	phase, text = Escape(phase), strings.ReplaceAll(Escape(text), "\n", " ")
	elapsed := t.p.now().Sub(t.started)
	if n := len(t.steps); n > 0 {
		last := &t.steps[n-1]
		switch {
		case last.phase == phase && last.text == text:
			return
		case last.phase == phase:
			t.steps = t.steps[:n-1]
		default:
			last.elapsed = elapsed
		}
	}
	t.steps = append(t.steps, step{phase, text, -1})
	t.event(phase, text, elapsed)
	if t.p.size == nil {
		fmt.Fprintf(t.p.w, "%s/%s %s: %s (%s)\n", Escape(t.namespace), Escape(t.name), phase, text, duration.HumanDuration(elapsed))
		return
	}
	t.p.draw()
}

func (t *Task) event(phase, text string, elapsed time.Duration) {
	if t.p.events == nil {
		return
	}
	line, err := json.Marshal(&v1alpha1.OperationEvent{
		TypeMeta:  v1alpha1.Type("OperationEvent"),
		Object:    "virtualmachine.kubevirt.io/" + t.name,
		Namespace: t.namespace,
		Phase:     phase,
		Message:   text,
		Time:      metav1.NewTime(t.p.now()),
		Elapsed:   metav1.Duration{Duration: elapsed.Round(time.Millisecond)},
	})
	if err == nil {
		_, _ = t.p.events.Write(append(line, '\n'))
	}
}

// Done ends the task: its lines stay as they are, above those of tasks that go on.
func (t *Task) Done() {
	p := t.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.tasks {
		if other != t {
			continue
		}
		p.tasks = append(p.tasks[:i:i], p.tasks[i+1:]...)
		if n := len(t.steps); n > 0 && t.steps[n-1].elapsed < 0 {
			t.steps[n-1].elapsed = p.now().Sub(t.started)
		}
		if p.size != nil {
			var final bytes.Buffer
			for _, line := range t.lines(t.started, 0) {
				fmt.Fprintln(&final, line)
			}
			p.above(final.Bytes())
		}
		return
	}
}

// Close stops rewriting. Tasks that are not done stay as they were shown last; a bar goes.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar = nil
	if p.stop != nil {
		close(p.stop)
		p.stop = nil
	}
	p.draw()
	p.tasks, p.drawn = nil, 0
	if len(p.partial) > 0 {
		_, _ = p.w.Write(p.partial)
		p.partial = nil
	}
}

// Write writes text above the status block, whole lines at a time.
func (p *Progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size == nil {
		return p.w.Write(b)
	}
	p.partial = append(p.partial, b...)
	if end := bytes.LastIndexByte(p.partial, '\n') + 1; end > 0 {
		p.above(p.partial[:end])
		p.partial = bytes.Clone(p.partial[end:])
	}
	return len(b), nil
}

func (p *Progress) tick(stop chan struct{}) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

// draw replaces the block on the screen with the present one.
func (p *Progress) draw() { p.above(nil) }

// above replaces the block with text and the block below it, in one write so that nothing
// flickers. Lines are cut at the terminal's width: one that goes on in the next row would break
// the count of rows to go back.
func (p *Progress) above(text []byte) {
	if p.size == nil {
		return
	}
	var out bytes.Buffer
	if p.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\r\x1b[J", p.drawn)
	}
	out.Write(text)
	width, height := p.size()
	var lines []string
	for _, t := range p.tasks {
		lines = append(lines, t.lines(p.now(), width)...)
	}
	if most := max(1, height-1); len(lines) > most {
		lines = append(lines[:most-1:most-1], fmt.Sprintf("... and %d lines more", len(lines)-most+1))
	}
	if p.bar != nil {
		lines = append(lines, p.bar.line(width))
	}
	for _, line := range lines {
		fmt.Fprintln(&out, cut(line, width-1))
	}
	p.drawn = len(lines)
	if out.Len() > 0 {
		_, _ = p.w.Write(out.Bytes())
	}
}

// lines are the heading and a line a step, with the time since the start of the task. Texts are cut so
// that the time is seen on a terminal of that width, 0 cuts nothing.
func (t *Task) lines(now time.Time, width int) []string {
	phases, texts := 9, 0
	for _, s := range t.steps {
		phases, texts = max(phases, len([]rune(s.phase))), max(texts, len([]rune(s.text)))
	}
	if room := width - phases - len("  "+"   "+"   12345"); width > 0 {
		texts = max(0, min(texts, room))
	}
	lines := []string{t.heading}
	for _, s := range t.steps {
		elapsed := s.elapsed
		if elapsed < 0 {
			elapsed = now.Sub(t.started)
		}
		lines = append(lines, fmt.Sprintf("  %-*s   %-*s  %5s", phases, s.phase, texts, cut(s.text, texts), duration.HumanDuration(elapsed)))
	}
	return lines
}

// cut shortens text to a number of characters.
func cut(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	if most <= 3 {
		return string(runes[:most])
	}
	return string(runes[:most-3]) + "..."
}
