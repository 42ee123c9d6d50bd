package qcow2

// use is what a cluster of a file is used for.
type use uint8

const (
	unused         use = iota
	usedAsMetadata     // header, L1 and refcount tables, refcount blocks, snapshot table
	usedAsTable        // an L2 table
	usedAsData
	usedAsCompressed // a part of one or more compressed clusters
)

func (u use) String() string {
	return [...]string{"nothing", "metadata", "an L2 table", "data", "compressed data"}[u]
}

const (
	// A word of the map has 4 bits for each of 16 clusters.
	useBits      = 4
	wordClusters = 64 / useBits

	// The map consists of pages of 8 KiB, which are allocated when one of their clusters is used.
	mapPageWords    = 1 << 10
	mapPageClusters = mapPageWords * wordClusters

	// The map has at most 1024 pages, which are 8 MiB. This is enough for a file of 1 TiB with clusters
	// of 64 KiB. Larger files are checked in several passes.
	maxMapPages    = 1 << 10
	windowClusters = maxMapPages * mapPageClusters
)

// clusterMap records the use of the clusters in a window of a file. It ignores the other clusters.
type clusterMap struct {
	clusterBits uint32
	total       int64 // clusters of the file
	first       int64 // first cluster of the window
	pages       [maxMapPages]*[mapPageWords]uint64
}

// move moves the window. All clusters of the window are unused.
func (m *clusterMap) move(first int64) {
	m.first = first
	for _, p := range m.pages {
		if p != nil {
			clear(p[:])
		}
	}
}

// at returns the use of the cluster at offset. It is unused if it is outside the window.
func (m *clusterMap) at(offset int64) use {
	i := offset>>m.clusterBits - m.first
	if i < 0 || i >= windowClusters || m.pages[i/mapPageClusters] == nil {
		return unused
	}
	word := m.pages[i/mapPageClusters][i%mapPageClusters/wordClusters]
	return use(word >> (i % wordClusters * useBits) & (1<<useBits - 1))
}

// mark records the use of the clusters of length bytes at offset. It returns an error if one of them
// is already used, unless the use is the same and shared is true. It ignores bytes after the end of
// the file.
func (m *clusterMap) mark(offset, length int64, u use, shared bool) error {
	first := max(m.first, offset>>m.clusterBits)
	last := (offset + length - 1) >> m.clusterBits
	for c := first; c <= min(last, m.total-1, m.first+windowClusters-1); c++ {
		i := c - m.first
		page := &m.pages[i/mapPageClusters]
		if *page == nil {
			*page = new([mapPageWords]uint64)
		}
		word, shift := &(*page)[i%mapPageClusters/wordClusters], i%wordClusters*useBits
		switch old := use(*word >> shift & (1<<useBits - 1)); {
		case old == unused:
			*word |= uint64(u) << shift
		case old == u && shared:
		default:
			return refuse(hintDamaged, "the cluster at %d of the qcow2 file is used twice: as %s and as %s", c<<m.clusterBits, old, u)
		}
	}
	return nil
}
