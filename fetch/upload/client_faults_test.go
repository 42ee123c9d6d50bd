package upload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// faulty drops requests, or their answers, by chance, and lets the daemon start again.
type faulty struct {
	r    *rig
	dice *rand.Rand
}

var errFault = errors.New("connection reset by a test")

func (f *faulty) RoundTrip(q *http.Request) (*http.Response, error) {
	dice := f.dice.IntN(12)
	switch {
	case dice == 0:
		return nil, errFault
	case dice == 1 && q.Method == http.MethodPatch && q.ContentLength > 0: // half of it arrives
		half := q.Clone(q.Context())
		half.Header.Del("Upload-Checksum")
		half.Body = io.NopCloser(io.MultiReader(io.LimitReader(q.Body, q.ContentLength/2), broken{}))
		_, err := http.DefaultTransport.RoundTrip(half)
		return nil, err
	case dice == 2 && q.Method == http.MethodPatch && q.ContentLength > 0: // it is spoilt
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return nil, err
		}
		body[f.dice.IntN(len(body))] ^= 1
		q = q.Clone(q.Context())
		q.Body = io.NopCloser(bytes.NewReader(body))
	}
	a, err := http.DefaultTransport.RoundTrip(q)
	switch {
	case err == nil && dice == 3: // the answer does not
		a.Body.Close()
		return nil, errFault
	case err == nil && dice == 4 && len(f.r.sessions.list()) > 0:
		f.r.restart()
	}
	return a, err
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errFault }

func TestSendThroughFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			want := image(seed, int(13+seed)<<20+512)
			var content Content = newFile(t, file(t, want))
			if seed%2 == 1 {
				content = NewPipe(bytes.NewReader(want), -1)
			}
			c := &Client{Base: r.url, Transport: &faulty{r, rand.New(rand.NewPCG(seed, 7))}}
			o := order(content)
			o.Warn = func(err error) { t.Logf("%v", err) }
			err := c.Send(t.Context(), o, &fetch.Progress{})
			for errors.Is(err, errFault) { // before the first answer nothing is tried again
				err = c.Send(t.Context(), o, &fetch.Progress{})
			}
			if err != nil && !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			r.has(want)
		})
	}
}
