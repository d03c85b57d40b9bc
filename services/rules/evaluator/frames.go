package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// A frame is its kind (one byte), its length (uint32), and its payload; all numbers are little-endian.
//
//	L  JSON array of objects: the labels of new series, which are numbered in the order in which they come
//	S  n, k (uint32), n series numbers (uint32), n*k times (int64, ms), n*k values (float64), series by series
//	W  int64: all samples up to this moment (ms) have been sent
//	E  empty: that was all; an input that ends without it was broken off
const headerBytes = 5

type series struct {
	labels labels.Labels
	ref    storage.SeriesRef
}

// follow reads frames until the input ends, and evaluates what watermarks allow.
func (e *evaluation) follow(ctx context.Context, in *bufio.Reader) error {
	header := make([]byte, headerBytes)
	var payload []byte
	for {
		if _, err := io.ReadFull(in, header); err != nil {
			return fmt.Errorf("the feed broke off: %w", err)
		}
		size := int(binary.LittleEndian.Uint32(header[1:]))
		if cap(payload) < size {
			payload = make([]byte, size)
		}
		payload = payload[:size]
		if _, err := io.ReadFull(in, payload); err != nil {
			return fmt.Errorf("the feed broke off: %w", err)
		}
		var err error
		switch header[0] {
		case 'L':
			err = e.declare(payload)
		case 'S':
			err = e.take(ctx, payload)
		case 'W':
			err = e.allFed(ctx, int64(binary.LittleEndian.Uint64(payload)))
		case 'E':
			if err = e.commit(); err != nil {
				return err
			}
			e.evaluateUntil(ctx, e.end)
			return e.finish()
		default:
			err = fmt.Errorf("unknown frame %q", header[0])
		}
		if err != nil {
			return err
		}
	}
}

func (e *evaluation) declare(payload []byte) error {
	var found []map[string]string
	if err := json.Unmarshal(payload, &found); err != nil {
		return err
	}
	for _, named := range found {
		e.series = append(e.series, series{labels: labels.FromMap(named)})
	}
	return nil
}

func (e *evaluation) take(ctx context.Context, payload []byte) error {
	n, k := int(binary.LittleEndian.Uint32(payload)), int(binary.LittleEndian.Uint32(payload[4:]))
	if len(payload) != 8+4*n+16*n*k {
		return fmt.Errorf("a block of %d series with %d samples has %d bytes", n, k, len(payload))
	}
	numbers, times := payload[8:8+4*n], payload[8+4*n:8+4*n+8*n*k]
	values := payload[8+4*n+8*n*k:]
	if e.appender == nil {
		e.appender = e.db.Appender(ctx)
	}
	for i := range n {
		one := &e.series[binary.LittleEndian.Uint32(numbers[4*i:])]
		for j := i * k; j < (i+1)*k; j++ {
			at := int64(binary.LittleEndian.Uint64(times[8*j:]))
			value := math.Float64frombits(binary.LittleEndian.Uint64(values[8*j:]))
			ref, err := e.appender.Append(one.ref, one.labels, at, value)
			switch {
			case err == nil:
				one.ref = ref
			case errors.Is(err, storage.ErrOutOfOrderSample), errors.Is(err, storage.ErrTooOldSample),
				errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
				// What a Prometheus would refuse.
				e.refused++
			default:
				return err
			}
		}
	}
	e.samples += n * k
	return nil
}
