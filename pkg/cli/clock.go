package cli

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// ServerClock tells the time of the API server. Before the first answer it is this machine's.
type ServerClock struct {
	mu     sync.Mutex
	offset time.Duration
	known  bool
}

// Now returns the server's time, right to about a second: its Date header has no more.
func (c *ServerClock) Now() time.Time {
	offset, _ := c.Offset()
	return time.Now().Add(offset)
}

// Offset is how far the server is ahead of this machine, and whether it has answered yet.
func (c *ServerClock) Offset() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset, c.known
}

// observe learns from an answer: at some moment between sent and received the server's clock
// showed date or up to a second more. The smallest correction that agrees with that is taken, so
// that a machine with a right clock is not corrected at all.
func (c *ServerClock) observe(date, sent, received time.Time) {
	least, most := date.Sub(received), date.Add(time.Second).Sub(sent)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = true
	c.offset = min(max(0, least), most)
	if most < 0 {
		c.offset = most
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *ServerClock) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		resp, err := next.RoundTrip(r)
		// Aggregated APIs answer with their own clock.
		if err != nil || strings.HasPrefix(r.URL.Path, "/apis/subresources.kubevirt.io/") {
			return resp, err
		}
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			c.observe(date, sent, time.Now())
		}
		return resp, nil
	})
}
