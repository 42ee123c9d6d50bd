package peer

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// copied returns a state that shares nothing with s that Publish compares.
func copied(s State) State {
	s.Disks = slices.Clone(s.Disks)
	for i := range s.Disks {
		s.Disks[i].Copies = slices.Clone(s.Disks[i].Copies)
		for j := range s.Disks[i].Copies {
			if t := s.Disks[i].Copies[j].Failure; t != nil {
				other := *t
				s.Disks[i].Copies[j].Failure = &other
			}
		}
	}
	return s
}

func published(b *StateCache) string {
	e, _ := b.latest()
	return e.etag
}

// Every field of a state makes another ETag of it, but for those that change all the
// time: a new one is not forgotten.
func TestETagIsOfAllThatLasts(t *testing.T) {
	base := stateWith("node1", 2)
	base.Disks[0].Copies[1].Failure = &Failure{Action: "sync", Attempts: 1}
	volatile := map[string]bool{"State.Clock": true, "Disk.Total": true, "Disk.Free": true, "Failure.Since": true, "Failure.RetryIn": true}
	seen := 0
	for _, of := range []func(*State) any{
		func(s *State) any { return s },
		func(s *State) any { return &s.Disks[0] },
		func(s *State) any { return &s.Disks[0].Copies[0] },
		func(s *State) any { return s.Disks[0].Copies[1].Failure },
	} {
		kind := reflect.TypeOf(of(&base)).Elem()
		for i := range kind.NumField() {
			changed := copied(base)
			change(t, reflect.ValueOf(of(&changed)).Elem().Field(i))
			b := NewStateCache()
			b.Publish(base)
			before := published(b)
			b.Publish(changed)
			name := kind.Name() + "." + kind.Field(i).Name
			if other := published(b) != before; other == volatile[name] {
				t.Errorf("%s: another ETag: %v", name, other)
			}
			if e, _ := b.latest(); !reflect.DeepEqual(e.state, changed) {
				t.Errorf("%s: what was published is not shown", name)
			}
			seen++
		}
	}
	if seen < 35 {
		t.Errorf("only %d fields", seen)
	}
}

// change gives a field another value.
func change(t *testing.T, f reflect.Value) {
	switch v := f.Addr().Interface().(type) {
	case *disk.Digest:
		*v = digestOf(disk.SHA256, "another")
	case *time.Time:
		*v = time.Unix(1_800_000_000, 0).UTC()
	case **Failure:
		*v = &Failure{Action: "sync"}
	case *[]Disk:
		*v = nil
	case *[]Copy:
		*v = (*v)[:1]
	default:
		switch f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int, reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Float64:
			f.SetFloat(f.Float() - 1)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			t.Fatalf("a field of kind %v", f.Kind())
		}
	}
}

func TestProgressIsNotInTheETag(t *testing.T) {
	s := stateWith("node1", 1)
	b := NewStateCache()
	var etags []string
	for _, bytes := range []int64{0, 1 << 20, 2 << 20, 0} {
		s = copied(s)
		s.Disks[0].Copies[0].PartBytes = bytes
		b.Publish(s)
		etags = append(etags, published(b))
	}
	if etags[0] == etags[1] || etags[1] != etags[2] || etags[0] != etags[3] {
		t.Errorf("got %v", etags)
	}
}

func TestSameTimeElsewhereIsNoChange(t *testing.T) {
	s := stateWith("node1", 1)
	b := NewStateCache()
	b.Publish(s)
	before, changed := b.latest()
	s = copied(s)
	s.Disks[0].Copies[0].Verified = time.Now().Round(0)
	b.Publish(s)
	after, again := b.latest()
	s = copied(s)
	s.Disks[0].Copies[0].Verified = s.Disks[0].Copies[0].Verified.In(time.FixedZone("", 3600))
	b.Publish(s)
	if before.etag == after.etag || changed == again {
		t.Error("another time is no change")
	}
	if got := published(b); got != after.etag {
		t.Error("the same time elsewhere is a change")
	}
}

func TestPublishingTheSameCostsNothing(t *testing.T) {
	s, same := stateWith("node1", 1000), stateWith("node1", 1000)
	b := NewStateCache()
	b.Publish(s)
	if n := testing.AllocsPerRun(10, func() { b.Publish(same) }); n > 1 {
		t.Errorf("%.0f allocations", n)
	}
}

func BenchmarkPublish(b *testing.B) {
	s, same := stateWith("node1", 1000), stateWith("node1", 1000)
	other := copied(s)
	other.Config = "decade"
	b.Run("same", func(b *testing.B) {
		board := NewStateCache()
		board.Publish(s)
		b.ReportAllocs()
		for b.Loop() {
			board.Publish(same)
		}
	})
	b.Run("changed", func(b *testing.B) {
		board := NewStateCache()
		b.ReportAllocs()
		for b.Loop() {
			board.Publish(s)
			board.Publish(other)
		}
	})
	b.Run("encoded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e := &snapshot{state: s}
			text, zip := e.encoded()
			b.ReportMetric(float64(len(text)), "bytes")
			b.ReportMetric(float64(len(zip)), "packed-bytes")
		}
	})
	b.Run("decoded", func(b *testing.B) {
		text := string(encode(s))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeState(strings.NewReader(text)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
