package load

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// manyImages returns the declarations of n images with typical fields and different checksums.
func manyImages(n int) []string {
	images := make([]string, n)
	for i := range images {
		images[i] = fmt.Sprintf(`  image-%d:
    source:
      download:
        url: https://images.example.com/releases/%d/image-%d.qcow2
        mirrors:
          - https://mirror.example.com/releases/%d/image-%d.qcow2
        credentials: vendor
    checksum: %q
    format: qcow2
    minNumberOfCopies: 2
    nodeSelector: [edge]
    diskSelector:
      - ssd
`, i, i, i, i, i, strings.Repeat(fmt.Sprintf("%08x", i), 16))
	}
	return images
}

func oneFile(images []string) configdir.Snapshot {
	return configdir.Snapshot{Files: []configdir.File{{Path: "images.yaml", Data: []byte("images:\n" + strings.Join(images, ""))}}}
}

func fileEach(images []string) configdir.Snapshot {
	var s configdir.Snapshot
	for i, m := range images {
		s.Files = append(s.Files, configdir.File{Path: fmt.Sprintf("%06d.yaml", i), Data: []byte("images:\n" + m)})
	}
	return s
}

func mustBeValid(tb testing.TB, r Result) {
	if r.Allowed != schema.Everything {
		tb.Fatalf("not valid: %v", r.Errors)
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		images := manyImages(n)
		for name, s := range map[string]configdir.Snapshot{"one-file": oneFile(images), "file-each": fileEach(images)} {
			b.Run(fmt.Sprintf("%d/%s/first", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					mustBeValid(b, NewLoader().Load(b.Context(), s))
				}
			})
			b.Run(fmt.Sprintf("%d/%s/one-changed", n, name), func(b *testing.B) { oneChanged(b, s) })
		}
	}
}

// oneChanged reloads after a change of one image.
func oneChanged(b *testing.B, s configdir.Snapshot) {
	l := NewLoader()
	mustBeValid(b, l.Load(b.Context(), s))
	last := &s.Files[len(s.Files)-1]
	i := 0
	for b.Loop() {
		last.Data = fmt.Appendf(nil, "%s    bandwidthLimit: %d\n", strings.TrimRight(strings.Split(string(last.Data), "    bandwidthLimit")[0], " "), 1+i)
		i++
		mustBeValid(b, l.Load(b.Context(), s))
	}
}

// BenchmarkLoaderMemory reports the memory that a Loader of many images keeps.
func BenchmarkLoaderMemory(b *testing.B) {
	s := fileEach(manyImages(10_000))
	for b.Loop() {
		before := heap()
		l := NewLoader()
		mustBeValid(b, l.Load(b.Context(), s))
		b.ReportMetric(float64(heap()-before)/1e6, "MB-kept")
		runtime.KeepAlive(l)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
