package peer

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// namespaces are network namespaces for a receiver and some senders, with a link of
// 100 Mbit/s from each sender to the receiver and to nothing else.
type namespaces struct {
	tb       testing.TB
	receiver string // the namespace
	senders  []string
	image    disk.Copy
	sources  []Source
}

// newNamespaces starts so many senders of an image of size bytes.
func newNamespaces(tb testing.TB, senders int, size int64) *namespaces {
	tb.Helper()
	need.NetworkNamespaces(tb)
	need.Programs(tb, "tc")
	p := &namespaces{tb: tb, receiver: fmt.Sprintf("bim%d", os.Getpid())}
	p.add(p.receiver)
	for i := range senders {
		name := fmt.Sprintf("%s-%d", p.receiver, i)
		p.add(name)
		p.senders = append(p.senders, name)
		p.link(i)
		d := newDisk(tb)
		p.image = fillDisk(tb, d, size, io.LimitReader(rand.NewChaCha8([32]byte{5}), size))
		s := startSender(tb, fmt.Sprintf("node%d", i), d, fmt.Sprintf("10.77.%d.2:8000", i), execIn(name)...)
		p.sources = append(p.sources, s.source)
	}
	return p
}

// execIn returns the beginning of a command line that runs in a namespace.
func execIn(namespace string) []string { return []string{"ip", "netns", "exec", namespace} }

func (p *namespaces) add(name string) {
	p.run("ip", "netns", "add", name)
	p.tb.Cleanup(func() { p.run("ip", "netns", "del", name) })
	p.run("ip", "-n", name, "link", "set", "lo", "up")
}

// link connects sender i to the receiver.
func (p *namespaces) link(i int) {
	sender, ours := p.senders[i], fmt.Sprintf("peer%d", i)
	p.run("ip", "link", "add", "name", "up0", "netns", sender, "type", "veth", "peer", "name", ours, "netns", p.receiver)
	p.run("ip", "-n", sender, "addr", "add", fmt.Sprintf("10.77.%d.2/24", i), "dev", "up0")
	p.run("ip", "-n", p.receiver, "addr", "add", fmt.Sprintf("10.77.%d.1/24", i), "dev", ours)
	p.run("ip", "-n", sender, "link", "set", "up0", "up")
	p.run("ip", "-n", p.receiver, "link", "set", ours, "up")
	p.run("tc", "-n", sender, "qdisc", "add", "dev", "up0", "root", "tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms")
}

func (p *namespaces) run(line ...string) {
	p.tb.Helper()
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		p.tb.Errorf("%v: %v: %s", line, err, out)
	}
}

func (p *namespaces) pullJob(senders int) pullJob {
	return pullJob{Sources: p.sources[:senders], Size: p.image.Size, Digest: p.image.SHA512}
}

// When an interface goes down nothing closes the connection: no more packets arrive.
func TestPullContinuesWhenAnInterfaceGoesDown(t *testing.T) {
	t.Parallel()
	p := newNamespaces(t, 2, 64*mib)
	o := p.pullJob(2)
	o.NotifyAt = 16 * mib
	done := pullInProcess(t, t.TempDir(), o, func() {
		p.run("ip", "-n", p.senders[0], "link", "set", "up0", "down")
	}, execIn(p.receiver)...)
	if done.LongestPause > 15 {
		t.Errorf("nothing arrived for %.1f s", done.LongestPause)
	}
	if most := p.image.Size / 100 * 105; done.Received > most {
		t.Errorf("received %d bytes for %d, want at most 5%% more", done.Received, p.image.Size)
	}
	if rest := float64(p.image.Size-o.NotifyAt) / (100 * mbit); done.Seconds < rest {
		t.Errorf("took %.1f s, but the other sender alone needs %.1f s", done.Seconds, rest)
	}
	t.Logf("%.1f s, longest pause %.1f s, received %.1f MiB", done.Seconds, done.LongestPause, float64(done.Received)/mib)
}

// BenchmarkSenders compares senders at 100 Mbit/s each with one of them.
func BenchmarkSenders(b *testing.B) {
	for _, senders := range []int{2, 3} {
		b.Run(fmt.Sprint(senders), func(b *testing.B) {
			p := newNamespaces(b, senders, 128*mib)
			var one, all []pullResult
			for b.Loop() {
				one = append(one, pullInProcess(b, b.TempDir(), p.pullJob(1), nil, execIn(p.receiver)...))
				all = append(all, pullInProcess(b, b.TempDir(), p.pullJob(senders), nil, execIn(p.receiver)...))
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
