package xz

import "encoding/binary"

// x86 reverts the filter for code of x86 processors: it replaces the absolute targets of calls and
// jumps by relative ones. It converts only targets whose highest byte is 0 or 255.
type x86 struct {
	buf  []byte
	done int    // number of bytes of buf that next has returned
	pos  uint32 // of buf in the block

	// recent has a bit for each opcode that was not converted and is 1, 2 or 3 bytes before: 2, 4, 8.
	// far has the same bits for those whose highest byte of the target was 0 or 255.
	recent, far byte
}

// next converts p, and returns the bytes that no later bytes can change. They are valid until the next
// call. After the last call it has returned all bytes.
func (f *x86) next(p []byte, last bool) []byte {
	f.pos += uint32(f.done)
	f.buf = append(f.buf[:copy(f.buf, f.buf[f.done:])], p...)
	f.done = f.convert(f.buf)
	if last {
		f.done = len(f.buf)
	}
	return f.buf[:f.done]
}

// convert returns the number of bytes that it has decided about.
func (f *x86) convert(buf []byte) int {
	const opcode, size = 0xe8, 5 // call; 0xe9 is a jump
	i := 0
	for i+size <= len(buf) {
		f.recent, f.far = f.recent<<1&0xe, f.far<<1&0xe
		if buf[i]&^1 != opcode {
			i++
			continue
		}
		target := buf[i+1 : i+size]
		shift := x86Shift[f.recent%16]
		if !isHighest(target[3]) || shift < 0 || f.far != 0 {
			f.recent |= 1
			if isHighest(target[3]) {
				f.far |= 1
			}
			i++
			continue
		}
		v, next := binary.LittleEndian.Uint32(target), f.pos+uint32(i)+size
		v -= next
		// The filter avoids targets that would look as if the opcode before had not been converted.
		if f.recent != 0 && isHighest(byte(v>>shift)) {
			v = v ^ (1<<(shift+8) - 1) - next
		}
		v = uint32(int32(v<<7) >> 7) // 25 bits with a sign
		binary.LittleEndian.PutUint32(target, v)
		f.recent, f.far = 0, 0
		i += size
	}
	return i
}

// x86Shift contains, for each value of recent that permits a conversion, the place of that byte of the target
// which is also the highest byte of the target before it.
var x86Shift = [16]int{0, -1, 16, -1, 8, -1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1}

func isHighest(b byte) bool { return b == 0 || b == 255 }
