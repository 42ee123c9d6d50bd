package peer

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
)

// namespaces are network namespaces for one receiver and some senders. A separate link of 100 Mbit/s
// connects each sender to the receiver.
type namespaces struct {
	tb       testing.TB
	receiver netns.Namespace
	senders  []netns.Namespace
	image    model.Copy
	sources  []Source
}

// newNamespaces starts the given number of senders of an image of size bytes.
func newNamespaces(tb testing.TB, senders int, size int64) *namespaces {
	tb.Helper()
	need.Programs(tb, "tc")
	p := &namespaces{tb: tb, receiver: netns.New(tb, fmt.Sprintf("bim%d", os.Getpid()))}
	for i := range senders {
		sender := netns.New(tb, fmt.Sprintf("%s-%d", p.receiver, i))
		p.senders = append(p.senders, sender)
		p.link(i)
		d := newDisk(tb)
		p.image = fillDisk(tb, d, size, io.LimitReader(rand.NewChaCha8([32]byte{5}), size))
		s := startSender(tb, fmt.Sprintf("node%d", i), d, fmt.Sprintf("10.77.%d.2:8000", i), sender.Exec()...)
		p.sources = append(p.sources, s.source)
	}
	return p
}

// link connects sender i to the receiver.
func (p *namespaces) link(i int) {
	sender, ours := p.senders[i], fmt.Sprintf("peer%d", i)
	sender.Link(p.tb, "up0", p.receiver, ours)
	sender.IP(p.tb, "addr", "add", fmt.Sprintf("10.77.%d.2/24", i), "dev", "up0")
	p.receiver.IP(p.tb, "addr", "add", fmt.Sprintf("10.77.%d.1/24", i), "dev", ours)
	sender.IP(p.tb, "link", "set", "up0", "up")
	p.receiver.IP(p.tb, "link", "set", ours, "up")
	netns.Run(p.tb, "tc", "-n", string(sender), "qdisc", "add", "dev", "up0", "root", "tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms")
}

func (p *namespaces) pullJob(senders int) pullJob {
	return pullJob{Sources: p.sources[:senders], Size: p.image.Size, Digest: p.image.SHA512}
}

// TestPullContinuesWhenAnInterfaceGoesDown: when an interface goes down, no connection is closed, but
// no more packets arrive.
func TestPullContinuesWhenAnInterfaceGoesDown(t *testing.T) {
	t.Parallel()
	p := newNamespaces(t, 2, 64*mib)
	o := p.pullJob(2)
	o.NotifyAt = 16 * mib
	done := pullInProcess(t, t.TempDir(), o, func() {
		p.senders[0].IP(t, "link", "set", "up0", "down")
	}, p.receiver.Exec()...)
	if done.LongestPause > 15 {
		t.Errorf("no bytes arrived for %.1f s", done.LongestPause)
	}
	if most := p.image.Size / 100 * 105; done.Received > most {
		t.Errorf("received %d bytes for %d, want at most 5%% more", done.Received, p.image.Size)
	}
	if rest := float64(p.image.Size-o.NotifyAt) / (100 * 1_000_000 / 8); done.Seconds < rest {
		t.Errorf("took %.1f s, but the other sender alone needs %.1f s", done.Seconds, rest)
	}
	t.Logf("%.1f s, longest pause %.1f s, received %.1f MiB", done.Seconds, done.LongestPause, float64(done.Received)/mib)
}

// BenchmarkSenders compares several senders at 100 Mbit/s each with a single sender.
func BenchmarkSenders(b *testing.B) {
	for _, senders := range []int{2, 3} {
		b.Run(fmt.Sprint(senders), func(b *testing.B) {
			p := newNamespaces(b, senders, 128*mib)
			var one, all []pullResult
			for b.Loop() {
				one = append(one, pullInProcess(b, b.TempDir(), p.pullJob(1), nil, p.receiver.Exec()...))
				all = append(all, pullInProcess(b, b.TempDir(), p.pullJob(senders), nil, p.receiver.Exec()...))
			}
			seconds := func(o pullResult) float64 { return o.Seconds }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(one, seconds).Seconds, "s-one")
			b.ReportMetric(median(all, seconds).Seconds, "s")
			b.ReportMetric(median(one, seconds).Seconds/median(all, seconds).Seconds, "x-one")
			b.ReportMetric(float64(median(all, seconds).Received)/float64(p.image.Size)*100-100, "%-twice")
		})
	}
}
